//! A client with the settings of its environment. The other process is this test binary.

use std::process::Command;

use lockset::Client;

use crate::support::{command, cycle};

const OTHER: &str = "api::environment::a_client_of_the_environment";

/// What a process says of its client with this environment.
fn said(variables: &[(&str, &str)]) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", OTHER, "--nocapture"])
        .env_remove("LOCKSET_URL")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
#[ignore = "the other process of a test"]
async fn a_client_of_the_environment() {
    match Client::from_env().await {
        Ok(client) => {
            cycle(&client.lock("x").fenced()).await;
            println!("said: {client:?}");
        }
        Err(error) => println!("said: {error} / {error:?}"),
    }
}

#[tokio::test]
async fn a_client_has_the_settings_of_the_environment() {
    let server = lockset_testkit::Server::start();
    let rules = ["ACL", "SETUSER", "u", "on", ">se:cr@t", "~*", "&*", "+@all"];
    command(&server, &rules).await;
    let url = server.url();
    let (user, prefix) = (("LOCKSET_USER", "u"), ("LOCKSET_PREFIX", "shop:"));
    let (lease, at) = (("LOCKSET_LEASE", "7s"), ("LOCKSET_URL", &*url));
    let said_of = said(&[at, user, ("LOCKSET_PASSWORD", "se:cr@t"), prefix, lease]);
    for part in ["key_prefix: \"shop:\"", "lease: 7s"] {
        assert!(said_of.contains(part), "{part} in {said_of}");
    }
    assert_eq!(
        server.keys().await,
        ["redisson_lock_token:{shop:x}"],
        "{said_of}"
    );

    let denied = said(&[at, user, ("LOCKSET_PASSWORD", "se:cr@t!")]);
    assert!(
        denied.contains("user and password") && !denied.contains("se:cr"),
        "{denied}"
    );
    let missing = said(&[]);
    assert!(missing.contains("LOCKSET_URL: it is not set"), "{missing}");
}
