# Everything here finds or fetches a server by itself: see scripts/find-server.

SERVER = LOCKSET_SERVER_BIN="$$(scripts/find-server)"
VALKEY = LOCKSET_SERVER_BIN="$$(scripts/find-server --valkey)"

.PHONY: help demo test test-valkey check bench

help:
	@echo "make demo         100 participants, 90 seats: with and without the lock"
	@echo "make test         all tests, on redis-server or valkey-server, whichever is found"
	@echo "make test-valkey  the same on Valkey"
	@echo "make check        formatting, lints, documentation"
	@echo "make bench        our ratios against the floor, measured in one run"

demo:
	@$(SERVER) && export LOCKSET_SERVER_BIN && cargo run --quiet --release --example seats

test:
	@$(SERVER) && export LOCKSET_SERVER_BIN && echo "testing on $$LOCKSET_SERVER_BIN" && \
	  cargo test --workspace

test-valkey:
	@$(VALKEY) && export LOCKSET_SERVER_BIN && echo "testing on $$LOCKSET_SERVER_BIN" && \
	  cargo test --workspace

check:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

bench:
	@$(SERVER) && export LOCKSET_SERVER_BIN && cargo bench --package lockset
