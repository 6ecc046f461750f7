//! Servers as the program finds them: a URL, what else stands in the environment, and what must never be shown.

use std::path::Path;
use std::process::Stdio;

use lockset_testkit::{Certificates, Server, unique_name};
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

use crate::support::{Ended, Running, ended, lockset};

/// A user of the servers, whose password has what a URL has to encode.
pub(crate) const USER: &str = "app";
pub(crate) const PASSWORD: &str = "s3cret/w@rd:%,+ß";
/// The password as a URL has it.
pub(crate) const ENCODED: &str = "s3cret%2Fw%40rd%3A%25%2C%2B%C3%9F";

/// A part of every secret of these tests, in any form.
const SECRET: &str = "s3cret";

/// Makes the user at one server, with all rights.
pub(crate) async fn make_user(server: &Server) {
    let password = format!(">{PASSWORD}");
    let words = ["SETUSER", USER, "on", &password, "~*", "&*", "+@all"];
    let mut user = redis::cmd("ACL");
    let () = user
        .arg(&words)
        .query_async(&mut server.admin().await)
        .await
        .unwrap();
}

/// Puts the login into a URL that has none.
pub(crate) fn with_login(url: &str, login: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    format!("{scheme}://{login}@{rest}")
}

/// Where the program finds its servers.
pub(crate) struct Place {
    pub(crate) url: String,
    environment: Vec<(&'static str, String)>,
    /// Begins all names of one test.
    pub(crate) tag: String,
    _folder: Option<TempDir>,
}

impl Place {
    pub(crate) fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            environment: Vec::new(),
            tag: unique_name("cli"),
            _folder: None,
        }
    }

    /// With the user's login in the URL.
    pub(crate) fn with_password(url: &str) -> Self {
        Self::new(with_login(url, &format!("{USER}:{ENCODED}")))
    }

    /// With the certificates in files, as a program has them.
    pub(crate) fn over_tls(url: impl Into<String>, certificates: &Certificates) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path: &Path = folder.path();
            let path = path.join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let environment = vec![
            ("LOCKSET_TLS_CA", file("ca", certificates.ca_pem())),
            (
                "LOCKSET_TLS_CERT",
                file("cert", certificates.client_cert_pem()),
            ),
            (
                "LOCKSET_TLS_KEY",
                file("key", certificates.client_key_pem()),
            ),
        ];
        Self {
            environment,
            _folder: Some(folder),
            ..Self::new(url)
        }
    }

    /// With one variable more.
    pub(crate) fn and(mut self, name: &'static str, value: &str) -> Self {
        self.environment.push((name, value.to_owned()));
        self
    }

    /// A name of this test.
    pub(crate) fn name(&self, name: &str) -> String {
        format!("{}:{name}", self.tag)
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = lockset(&self.url, arguments);
        for (name, value) in &self.environment {
            command.env(name, value);
        }
        command
    }

    /// Runs it to its end, which must not show a secret.
    pub(crate) async fn ended(&self, arguments: &[&str]) -> Ended {
        let ended = ended(&mut self.command(arguments)).await;
        is_discreet(&ended);
        ended
    }

    pub(crate) async fn status(&self, arguments: &[&str]) -> i32 {
        self.ended(arguments).await.status
    }

    /// The objects that it prints, one a line; and that it ended with this status.
    pub(crate) async fn objects(&self, arguments: &[&str], status: i32) -> Vec<Value> {
        let ended = self.ended(&[&["--json"], arguments].concat()).await;
        assert_eq!(ended.status, status, "{arguments:?}: {ended:?}");
        let lines = ended.out.lines();
        lines
            .map(|line| serde_json::from_str(line).expect(line))
            .collect()
    }

    /// Starts it, with an input that it may wait for.
    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        Running::start(self.command(arguments).stdin(Stdio::piped()))
    }
}

/// Neither its output nor its errors have a secret in them.
#[track_caller]
pub(crate) fn is_discreet(ended: &Ended) {
    let shown = format!("{}{}", ended.out, ended.err);
    assert!(!shown.contains(SECRET), "{ended:?}");
}
