//! What cannot work, where the error points, and what it says to write.

use super::parts;
use crate::expand::try_locked;

/// The source; what the error points at; a part of what it says.
type Case = (&'static str, &'static str, &'static str);

fn check(cases: &[Case]) {
    for &(source, at, says) in cases {
        let (options, item) = parts(source);
        let error = match try_locked(options, item) {
            Err(error) => error,
            Ok(made) => panic!("{source}\nwas taken:\n{made}"),
        };
        let message = error.to_string();
        assert!(message.contains(says), "{source}\nsays: {message}");
        // An error about all of it has no place inside of it.
        let place = error.span().source_text().unwrap_or_default();
        assert_eq!(place, at, "{source}\nsays: {message}");
    }
}

macro_rules! on_a_function {
    ($options:literal) => {
        concat!(
            "#[locked(",
            $options,
            ")] async fn ship(locks: &Client, id: u64) -> Result<(), Error> { Ok(()) }"
        )
    };
}

/// Each has one error, at `permits`, which says why and what to do.
#[test]
fn options_beside_permits() {
    for (options, word) in [
        (r#"all("x", "y"), permits = 3"#, "`all(..)` beside"),
        (r#"read "x", permits = 3"#, "`read` or `write` beside"),
        (r#""x", write, permits = 3"#, "`read` or `write` beside"),
        (r#""x", permits = 3, fenced"#, "`fenced` beside"),
        (r#""x", permits = 3, fenced = token"#, "`fenced` beside"),
        (r#""x", permits = 3, owner = &me"#, "`owner` beside"),
        (r#""x", permits = 3, at_least = "1m""#, "`at_least` beside"),
        (r#""x", permits = 3, max_hold = "1m""#, "`max_hold` beside"),
        (
            r#""x", permits = 3, replicated(1, "1s")"#,
            "`replicated(..)` beside",
        ),
    ] {
        let source = format!(
            "#[locked({options})] async fn ship(locks: &Client) -> Result<(), Error> {{ Ok(()) }}"
        );
        let (options, item) = parts(&source);
        let error = try_locked(options, item).expect_err(&source);
        let message = error.to_string();
        assert!(
            message.contains(word) && message.ends_with("; leave one of them out"),
            "{message}"
        );
        assert_eq!(
            error.span().source_text().as_deref(),
            Some("permits"),
            "{message}"
        );
    }
}

/// Each has one error, at `sticky`, which says why.
#[test]
fn sticky_where_it_has_no_effect() {
    for (options, why) in [
        (r#"fair "x", sticky = "5ms""#, "waiters of other processes"),
        (r#""x", read, sticky = "5ms""#, "readers share"),
        (r#"all("x", "y"), sticky = "5ms""#, "several locks"),
        (r#"each(&names), sticky = "5ms""#, "several locks"),
        (r#""x", permits = 3, sticky = "5ms""#, "a released permit"),
        (r#""x", redlock = q, sticky = "5ms""#, "each grant of a"),
        (
            r#""x", fixed_lease = "9s", sticky = "5ms""#,
            "a fixed lease",
        ),
    ] {
        let source = format!(
            "#[locked({options})] async fn ship(locks: &Client) -> Result<(), Error> {{ Ok(()) }}"
        );
        let (options, item) = parts(&source);
        let error = try_locked(options, item).expect_err(&source);
        let message = error.to_string();
        assert!(message.contains(why), "{message}");
        assert_eq!(
            error.span().source_text().as_deref(),
            Some("sticky"),
            "{message}"
        );
    }
}

#[test]
fn lists_replicas_and_redlocks() {
    check(&[
        (
            on_a_function!(r#"each"#),
            "each",
            "`each` needs a list of names; write `each(&names)`",
        ),
        (on_a_function!(r#"each()"#), "each", "`each` of no list"),
        (
            on_a_function!(r#""x", each(&names)"#),
            "\"x\"",
            "a key beside `each(..)`",
        ),
        (
            on_a_function!(r#"each(&names), read"#),
            "read",
            "`each(read &names)`",
        ),
        (
            on_a_function!(r#"each(&names), permits = 3"#),
            "permits",
            "`each(..)` beside `permits`",
        ),
        (
            on_a_function!(r#"all("x"), each(&names)"#),
            "&names",
            "`all(..)` and `each(..)`",
        ),
        (
            on_a_function!(r#""x", replicated"#),
            "replicated",
            "write `replicated(1, \"500ms\")`",
        ),
        (
            on_a_function!(r#""x", replicated(1)"#),
            "replicated",
            "a number and a time",
        ),
        (
            on_a_function!(r#""x", replicated(0, "1s")"#),
            "0",
            "0 replicas confirm nothing",
        ),
        (
            on_a_function!(r#""x", redlock"#),
            "redlock",
            "`redlock` needs a value: `redlock = self.quorum`",
        ),
        (
            on_a_function!(r#"redlock = quorum"#),
            "redlock",
            "the key is missing",
        ),
        (
            on_a_function!(r#""x", redlock = quorum, client = locks"#),
            "redlock",
            "`client` beside `redlock`: it has clients of its own",
        ),
        (
            on_a_function!(r#"fair "x", redlock = quorum"#),
            "redlock",
            "its locks are of one kind",
        ),
        (
            on_a_function!(r#"all("x"), redlock = quorum"#),
            "redlock",
            "`all(..)` beside `redlock`",
        ),
    ]);
}

#[test]
fn options() {
    check(&[
        (
            on_a_function!(r#""x", wiat = "5s""#),
            "wiat",
            "`wiat` is no option; the options are `client`, `wait`",
        ),
        (
            on_a_function!(r#"key = "order:{id}""#),
            "key",
            "the key comes without a name: `#[locked(\"order:{id}\")]`",
        ),
        (
            on_a_function!(r#""x", timeout = "5s""#),
            "timeout",
            "write `wait = \"5s\"`, or `try`",
        ),
        (
            on_a_function!(r#""x", ttl = "5s""#),
            "ttl",
            "write `lease = \"30s\"`",
        ),
        (
            on_a_function!(r#""x", skip"#),
            "skip",
            "write `busy = skip`",
        ),
        (
            on_a_function!(r#""x", token = t"#),
            "token",
            "write `fenced = token`",
        ),
        (
            on_a_function!(r#""x", label = "orders""#),
            "label",
            "write `group = \"orders\"`",
        ),
        (
            on_a_function!(r#""x", group"#),
            "group",
            "`group` needs a value: `group = \"orders\"`",
        ),
        (
            on_a_function!(r#""x", group = "order:{id}""#),
            "\"order:{id}\"",
            "one of few names, and the same for each call",
        ),
        (on_a_function!(r#""x", group = """#), "\"\"", "leave it out"),
        (
            on_a_function!(r#""x", permits"#),
            "permits",
            "`permits` needs a value: `permits = 3`",
        ),
        (
            on_a_function!(r#""x", permits = 0"#),
            "0",
            "a semaphore needs at least one permit",
        ),
        (
            on_a_function!(r#""x", permits = 3000000000"#),
            "3000000000",
            "at most 2147483647",
        ),
        (
            on_a_function!(r#""x", permits = "3""#),
            "\"3\"",
            "like `permits = 3`",
        ),
        (
            on_a_function!(r#""x", semaphore = 3"#),
            "semaphore",
            "write `permits = 3`",
        ),
        (
            on_a_function!(r#""x", group = 7"#),
            "7",
            "a group is a text: write `group = \"orders\"`",
        ),
        (
            on_a_function!(r#""x", group = format!("{id}")"#),
            "format!(\"{id}\")",
            "a text or a constant",
        ),
        (
            on_a_function!(r#""x", group = "a", group = "b""#),
            "group",
            "`group` is there twice",
        ),
        (
            on_a_function!(r#""x", wait"#),
            "wait",
            "`wait` needs a value: `wait = \"5s\"`",
        ),
        (
            on_a_function!(r#""x", lease = "5s", lease = "6s""#),
            "lease",
            "`lease` is there twice",
        ),
        (
            on_a_function!(r#""x" wait = "5s""#),
            "wait",
            "expected `,` between two options",
        ),
        (
            on_a_function!(r#""x", try, wait = "5s""#),
            "try",
            "`try` asks once and `wait` waits; write one of them",
        ),
        (
            on_a_function!(r#""x", lease = "5s", fixed_lease = "5s""#),
            "fixed_lease",
            "write one of them",
        ),
        (
            on_a_function!(r#""x", at_least = "2m", max_hold = "1m""#),
            "at_least",
            "`at_least` is longer than `max_hold`",
        ),
        (
            on_a_function!(r#""x", fenced = a, guard = a"#),
            "a",
            "`a` is the name of the token and of the guard; choose two",
        ),
        (
            on_a_function!(r#""x", fenced = 7"#),
            "7",
            "`fenced` names a variable for the body: `fenced = token`",
        ),
        (
            on_a_function!(r#""x", fenced = id"#),
            "id",
            "`id` is an argument already; choose another name for `fenced = ..`",
        ),
        (
            on_a_function!(r#""x", guard = locks"#),
            "locks",
            "`locks` is an argument already",
        ),
        (
            on_a_function!("7"),
            "7",
            "expected the key of the lock or an option",
        ),
    ]);
}

#[test]
fn spans_of_time() {
    check(&[
        (
            on_a_function!(r#""x", wait = 5s"#),
            "5s",
            "a span of time is a text: write \"5s\"",
        ),
        (
            on_a_function!(r#""x", wait = 5"#),
            "5",
            "write it with its unit, like \"5s\"",
        ),
        (
            on_a_function!(r#""x", wait = "5 seconds""#),
            "\"5 seconds\"",
            "`seconds` is no unit; write it like \"5s\"",
        ),
        (
            on_a_function!(r#""x", wait = "0s""#),
            "wait",
            "write `try` to ask once",
        ),
        (
            on_a_function!(r#""x", lease = "10ms""#),
            "lease",
            "a lease is from \"50ms\" to \"365d\"",
        ),
        (
            on_a_function!(r#""x", fixed_lease = "366d""#),
            "fixed_lease",
            "a lease is from \"50ms\" to \"365d\"",
        ),
        (
            on_a_function!(r#""x", max_hold = "0s""#),
            "max_hold",
            "`max_hold` of no time; leave it out",
        ),
    ]);
}

#[test]
fn keys() {
    check(&[
        (
            on_a_function!(""),
            "",
            "the key is missing; write the name of the lock first: `#[locked(\"order:{id}\")]`",
        ),
        (on_a_function!(r#""""#), "\"\"", "the key is empty"),
        (
            on_a_function!(r#""order:{}""#),
            "\"order:{}\"",
            "`{}` names nothing; write the argument or field that belongs there, like `{id}`",
        ),
        (
            on_a_function!(r#""order:{id""#),
            "\"order:{id\"",
            "write `{{` for a brace in the name",
        ),
        (
            on_a_function!(r#""order:{id + 1}""#),
            "\"order:{id + 1}\"",
            "compute it before, and pass it as an argument",
        ),
        (
            on_a_function!(r#""order:{ip}""#),
            "\"order:{ip}\"",
            "`ip`, which is no argument of `ship`; they are `locks`, `id`",
        ),
        (
            on_a_function!(r#""order:{self.id}""#),
            "\"order:{self.id}\"",
            "the key names `self`, and `ship` has none",
        ),
        (
            r#"#[locked("{id}", client = LOCKS)] async fn f() -> R {}"#,
            "\"{id}\"",
            "no argument of `f`; it has none",
        ),
        (
            on_a_function!(r#""a", "b""#),
            "\"b\"",
            "for several locks write `all(\"order:{id}\", read \"prices\")`",
        ),
    ]);
}

#[test]
fn kinds() {
    check(&[
        (
            on_a_function!(r#""a", fair, read"#),
            "read",
            "`fair` and `read`; a lock is of one kind",
        ),
        (
            on_a_function!(r#"read "a", write"#),
            "write",
            "write it once, before the key",
        ),
        (
            on_a_function!(r#"all("a", "b"), fair"#),
            "fair",
            "each lock has its own kind; write `all(fair \"order:{id}\")`",
        ),
        (
            on_a_function!(r#""a", all("b")"#),
            "\"a\"",
            "write all keys inside of `all(..)`",
        ),
        (on_a_function!("all()"), "all", "`all` of no locks"),
        (on_a_function!("all"), "all", "`all` needs its keys"),
        (
            on_a_function!(r#"all(shared "a")"#),
            "shared",
            "the kinds are `fair`, `read` and `write`",
        ),
        (
            on_a_function!(r#"all("a" "b")"#),
            "\"b\"",
            "expected `,` between two keys",
        ),
        (on_a_function!("all(id)"), "id", "`id` is no kind"),
        (on_a_function!("all(7)"), "7", "expected a key"),
    ]);
}

#[test]
fn clients() {
    check(&[
        (
            r#"#[locked("x")] async fn nightly() -> R {}"#,
            "nightly",
            "no client for `nightly`; write one of\n\
             - `client = EXPR` in the attribute, like `client = state.locks`\n\
             - an argument of type `&lockset::Client`\n\
             - a method with `self`, and `impl AsRef<lockset::Client>`",
        ),
        (
            r#"#[locked("x")] async fn f(http: &reqwest::Client) -> R {}"#,
            "f",
            "no client for `f`",
        ),
        (
            r#"#[locked("x")] async fn f(a: &Client, b: &lockset::Client) -> R {}"#,
            "b",
            "say which: `client = a` or `client = b`",
        ),
    ]);
}

#[test]
fn functions() {
    check(&[
        (
            r#"#[locked("x")] fn f(locks: &Client) -> Result<(), Error> { Ok(()) }"#,
            "fn",
            "`f` is not async, and a lock is awaited; write `async fn f`",
        ),
        (
            r#"#[locked("x")] fn f(locks: &Client) -> impl Future<Output = R> { later() }"#,
            "fn",
            "`f` is not async",
        ),
        (
            r#"#[locked("x")] async fn f(locks: &Client) {}"#,
            "f",
            "write `-> Result<(), E>`, where `E` is made from `lockset::Error`",
        ),
        (
            r#"#[locked("x")] async fn f(locks: &Client) -> impl IntoResponse {}"#,
            "impl IntoResponse",
            "write `Result<impl Trait, E>`",
        ),
        (
            r#"#[locked("x")] async fn f(&self) -> R;"#,
            "f",
            "no body to run under the lock; write `#[locked(..)]` in each `impl`",
        ),
        (
            r#"#[locked("x")] struct S;"#,
            "struct",
            "goes on an async function or method",
        ),
        (
            r#"#[locked("x")] impl S { async fn f(&self) -> R {} }"#,
            "impl",
            "goes on an async function or method",
        ),
    ]);
}

macro_rules! with_argument {
    ($argument:literal) => {
        concat!(
            "#[locked(\"x\")] async fn ship(locks: &Client, ",
            $argument,
            ") -> R { Ok(()) }"
        )
    };
}

#[test]
fn open_transactions() {
    const WHY: &str = "commit it after this function has released the lock";
    check(&[
        (
            with_argument!("tx: &mut Transaction<'_, Postgres>"),
            "&mut Transaction<'_, Postgres>",
            WHY,
        ),
        (
            with_argument!("tx: sqlx::Transaction<'_, Postgres>"),
            "sqlx::Transaction<'_, Postgres>",
            "this argument is a transaction",
        ),
        (
            with_argument!("tx: &mut PgTransaction<'_>"),
            "&mut PgTransaction<'_>",
            WHY,
        ),
        (
            with_argument!("tx: &tokio_postgres::Transaction<'_>"),
            "&tokio_postgres::Transaction<'_>",
            WHY,
        ),
        (
            with_argument!("tx: &DatabaseTransaction"),
            "&DatabaseTransaction",
            WHY,
        ),
        (
            with_argument!("db: &mut PgConnection"),
            "&mut PgConnection",
            "a connection, which may be in a transaction",
        ),
        (
            with_argument!("db: &mut PoolConnection<Sqlite>"),
            "&mut PoolConnection<Sqlite>",
            "Take the pool as an argument, then begin, work and commit inside",
        ),
        (
            with_argument!("tx: Option<&mut Transaction<'_, Db>>"),
            "Option<&mut Transaction<'_, Db>>",
            WHY,
        ),
    ]);
}

#[test]
fn types_that_are_no_open_transaction_are_taken() {
    for source in [
        with_argument!("db: &PgPool"),
        with_argument!("transfer: &Transaction"),
        with_argument!("all: Vec<Transaction>"),
        with_argument!("redis: &mut MultiplexedConnection"),
        with_argument!("db: PoolConnection<Sqlite>"),
        with_argument!("tx: &mut Transactions"),
    ] {
        let (options, item) = parts(source);
        let made = try_locked(options, item);
        assert!(made.is_ok(), "{source}: {}", made.unwrap_err());
    }
}

/// So that nothing but the error is reported.
#[test]
fn refused_functions_stay_as_they_were() {
    let (options, item) = parts(r#"#[locked("x", oops)] async fn f(c: &Client) -> R { g() }"#);
    let made = crate::expand::locked(options, item.clone()).to_string();
    assert!(made.contains("compile_error"), "{made}");
    assert!(made.ends_with(&item.to_string()), "{made}");
}
