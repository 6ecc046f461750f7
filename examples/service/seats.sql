-- The tables of the program `seats`, for PostgreSQL and SQLite.
CREATE TABLE IF NOT EXISTS fence (name text PRIMARY KEY, token bigint NOT NULL);
CREATE TABLE show (id bigint PRIMARY KEY, seats bigint NOT NULL);
CREATE TABLE seat (
    token bigint PRIMARY KEY, show bigint NOT NULL, number bigint NOT NULL, UNIQUE (show, number)
);
INSERT INTO show VALUES (1, 90);
