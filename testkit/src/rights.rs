//! Restricts the rights of clients, to run a whole suite with a list of rights.
//!
//! `LOCKSET_TEST_RIGHTS` holds rules of `ACL SETUSER`. With it, each server has a user with these
//! rights, and every URL from the testkit uses that user. Connections that are not under test use
//! the default user: the testkit's own, the Redisson peer, replicas and sentinels.

const USER: &str = "locker";
const PASSWORD: &str = "only-these-rights";

fn rules() -> Option<String> {
    std::env::var("LOCKSET_TEST_RIGHTS").ok()
}

/// The user part of a URL.
pub(crate) fn login() -> String {
    match rules() {
        Some(_) => format!("{USER}:{PASSWORD}@"),
        None => String::new(),
    }
}

/// The arguments that create the user.
pub(crate) fn args() -> Vec<String> {
    let Some(rules) = rules() else {
        return Vec::new();
    };
    let password = format!(">{PASSWORD}");
    let words = ["--user", USER, "on", &password];
    let words = words.into_iter().chain(rules.split_whitespace());
    words.map(str::to_owned).collect()
}
