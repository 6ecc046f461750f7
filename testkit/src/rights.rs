//! What clients may do, for a run of a whole suite under a list of rights.
//!
//! `LOCKSET_TEST_RIGHTS` holds rules as of `ACL SETUSER`. Each server then has a user with these, and
//! every URL that the kit gives out is that user's. What is not under test comes as the default user:
//! the kit itself, the Redisson peer, replicas, sentinels.

const USER: &str = "locker";
const PASSWORD: &str = "only-these-rights";

fn rules() -> Option<String> {
    std::env::var("LOCKSET_TEST_RIGHTS").ok()
}

/// What stands before the hosts of a URL.
pub(crate) fn login() -> String {
    match rules() {
        Some(_) => format!("{USER}:{PASSWORD}@"),
        None => String::new(),
    }
}

/// What a server is started with.
pub(crate) fn args() -> Vec<String> {
    let Some(rules) = rules() else {
        return Vec::new();
    };
    let password = format!(">{PASSWORD}");
    let words = ["--user", USER, "on", &password];
    let words = words.into_iter().chain(rules.split_whitespace());
    words.map(str::to_owned).collect()
}
