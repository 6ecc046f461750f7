//! Arguments: help, a command without `--`, and the messages for arguments that cannot be read.

use lockset_testkit::Server;

use crate::support::{ended, lockset};

#[tokio::test]
async fn help_is_shown_without_arguments_whatever_the_environment() {
    for url in ["", "redis://127.0.0.1:1"] {
        let shown = ended(&mut lockset(url, &[])).await;
        assert_eq!((shown.status, &*shown.out), (64, ""), "{shown:?}");
        assert!(shown.err.starts_with("Distributed locks"), "{shown:?}");
        assert!(shown.err.contains("Commands:\n  run "), "{shown:?}");
    }
}

#[tokio::test]
async fn help_that_cannot_be_written_is_an_error() {
    for arguments in [&["--help"][..], &["--version"], &["help", "run"]] {
        let full = std::fs::File::options().write(true).open("/dev/full");
        let mut command = lockset("", arguments);
        // Not `output`, which would take the place of this file.
        let running = command.stdout(full.unwrap()).spawn().unwrap();
        let found = running.wait_with_output().await.unwrap();
        assert_eq!(found.status.code(), Some(70), "{found:?}");
        let said = String::from_utf8(found.stderr).unwrap();
        assert!(said.starts_with("lockset: No space left"), "{said}");
    }
}

/// The address of the server is in the environment, and not missing.
#[tokio::test]
async fn usage_names_what_is_missing_alone() {
    for arguments in [&["run", "a"][..], &["once", "--for", "1m"], &["show"]] {
        let refused = ended(&mut lockset("redis://127.0.0.1:1", arguments)).await;
        assert_eq!(refused.status, 64, "{refused:?}");
        assert!(refused.err.contains("Usage: lockset "), "{refused:?}");
        assert!(!refused.err.contains("--url"), "{refused:?}");
    }
}

#[tokio::test]
async fn help_shows_the_help_of_a_verb() {
    let asked = ended(&mut lockset("", &["help", "run"])).await;
    let option = ended(&mut lockset("", &["run", "--help"])).await;
    assert_eq!((asked.status, &*asked.err), (0, ""), "{asked:?}");
    assert_eq!(asked.out, option.out);
    let unknown = ended(&mut lockset("", &["help", "nonsense"])).await;
    assert_eq!(unknown.status, 64, "{unknown:?}");
}

#[tokio::test]
async fn a_command_needs_no_separator_after_one_name() {
    let server = Server::start();
    let show = "echo $LOCKSET_NAME $*";
    for (arguments, out) in [
        (&["run", "a", "sh", "-c", show, "x", "y"][..], "a y\n"),
        // Options of `run` come before the command, options of the command after it.
        (
            &["run", "a", "--wait", "9s", "sh", "-c", show, "x", "--try"],
            "a --try\n",
        ),
        (
            &["--color", "never", "run", "--try", "a", "echo", "--fair"],
            "--fair\n",
        ),
        (&["once", "k", "--for=1m", "echo", "done"], "done\n"),
        // With the separator, names before it are locks.
        (&["run", "a", "b", "--", "sh", "-c", show], "a b\n"),
    ] {
        let ran = ended(&mut lockset(&server.url(), arguments)).await;
        assert_eq!((ran.status, &*ran.out), (0, out), "{arguments:?}: {ran:?}");
    }
}

#[tokio::test]
async fn a_shell_line_gets_a_hint() {
    for verb in [&["run", "a"][..], &["once", "a", "--for", "1m"]] {
        let arguments = [verb, &["-c", "echo x"]].concat();
        let refused = ended(&mut lockset("", &arguments)).await;
        assert_eq!(refused.status, 64, "{refused:?}");
        assert!(refused.err.contains("-- sh -c '"), "{refused:?}");
        assert!(!refused.err.contains("'-- -c'"), "{refused:?}");
    }
}

#[tokio::test]
async fn no_error_names_a_hidden_verb() {
    for arguments in [&["nam"][..], &["mann"], &["--json"], &["help", "nam"]] {
        let refused = ended(&mut lockset("", arguments)).await;
        assert_eq!(refused.status, 64, "{refused:?}");
        let words = refused
            .err
            .split(|sign: char| !sign.is_ascii_alphanumeric());
        let hidden: Vec<_> = words
            .filter(|word| ["names", "man"].contains(word))
            .collect();
        assert!(hidden.is_empty(), "{refused:?}");
    }
    let similar = ended(&mut lockset("", &["relase"])).await;
    assert!(similar.err.contains("'release'"), "{similar:?}");
}

/// Longer than any clock can show.
#[tokio::test]
async fn a_time_without_an_end_is_no_panic() {
    let server = Server::start();
    let forever = "15000000000000000000s";
    for (arguments, status) in [
        (&["wait", "a", "--timeout", forever][..], 0),
        (&["run", "a", "--wait", forever, "true"], 0),
        (&["run", "a", "--max-hold", forever, "true"], 0),
        (&["run", "a", "--grace", forever, "true"], 64),
        (&["run", "a", "--lease", forever, "true"], 64),
        (&["once", "a", "--for", forever, "true"], 64),
    ] {
        let ended = ended(&mut lockset(&server.url(), arguments)).await;
        assert_eq!(ended.status, status, "{arguments:?}: {ended:?}");
    }
}

#[tokio::test]
async fn a_budget_may_have_its_sign() {
    for verb in ["list", "tokens", "top"] {
        for (budget, status) in [("5", 69), ("5%", 69), ("101", 64), ("0", 64), ("five", 64)] {
            let arguments = [verb, "--budget", budget];
            let ended = ended(&mut lockset("redis://127.0.0.1:1", &arguments)).await;
            assert_eq!(ended.status, status, "{arguments:?}: {ended:?}");
        }
    }
    let refused = ended(&mut lockset(
        "redis://127.0.0.1:1",
        &["top", "--budget", "51"],
    ))
    .await;
    assert_eq!(refused.status, 64, "{refused:?}");
}

#[tokio::test]
async fn a_time_needs_a_unit() {
    for arguments in [
        &["run", "a", "--wait", "10", "--", "true"][..],
        &["run", "a", "--lease", "30", "--", "true"],
        &["wait", "a", "--timeout", "0.5"],
        &["once", "a", "--for", "15", "--", "true"],
    ] {
        let refused = ended(&mut lockset("", arguments)).await;
        assert_eq!(refused.status, 64, "{refused:?}");
        assert!(
            refused.err.contains("a unit is missing: write "),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn urls_with_a_comma_between_them_get_a_hint() {
    let urls = "redis://127.0.0.1:1,redis://127.0.0.1:2";
    for arguments in [&["run", "a", "--", "true"][..], &["list"], &["doctor"]] {
        let refused = ended(&mut lockset(urls, arguments)).await;
        assert_eq!(refused.status, 64, "{refused:?}");
        assert!(refused.err.contains("separated by spaces"), "{refused:?}");
    }
}
