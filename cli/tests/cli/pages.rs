//! The generated files of a package: completions and manual pages, and the help that they come from.

use std::path::Path;

use lockset::Client;
use lockset_testkit::Server;

use crate::support::{LOCKSET, Terminal, ended, lockset};

/// The verbs that the help names.
async fn verbs() -> Vec<String> {
    let help = ended(&mut lockset("", &["--help"])).await.out;
    let list = help.split_once("Commands:\n").expect("the list of verbs").1;
    let rows = list.lines().take_while(|row| !row.is_empty());
    let names = rows.filter(|row| row.starts_with("  ") && !row.starts_with("   "));
    names
        .map(|row| row.split_whitespace().next().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn every_verb_has_help_and_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let written = ended(&mut lockset("", &["man", path])).await;
    assert_eq!(written.status, 0, "{written:?}");
    let verbs = verbs().await;
    assert!(verbs.iter().any(|verb| verb == "run"), "{verbs:?}");
    assert!(!verbs.iter().any(|verb| verb == "man"), "hidden: {verbs:?}");
    for verb in verbs.iter().filter(|verb| *verb != "help") {
        let help = ended(&mut lockset("", &[verb, "--help"])).await;
        assert_eq!(help.status, 0, "{help:?}");
        let page = std::fs::read_to_string(folder.path().join(format!("lockset-{verb}.1")));
        let page = page.unwrap().replace('\\', "");
        let options = help
            .out
            .split_whitespace()
            .filter(|word| word.starts_with("--"));
        let options: Vec<_> = options
            .map(|word| word.trim_matches(|sign: char| sign != '-' && !sign.is_ascii_lowercase()))
            .filter(|option| option.len() > 2)
            .collect();
        assert!(options.contains(&"--url"), "{options:?}");
        let missing: Vec<_> = options
            .iter()
            .filter(|option| !page.contains(**option))
            .collect();
        assert!(missing.is_empty(), "{verb}: {missing:?}");
    }
    let page = std::fs::read_to_string(folder.path().join("lockset-run.1")).unwrap();
    let synopsis = page.split(".SH ").find(|part| part.starts_with("SYNOPSIS"));
    let synopsis = synopsis.unwrap().replace(r"\fB", "").replace(r"\fI", "");
    let synopsis = synopsis.replace(r"\fR", "").replace('\\', "");
    for part in [
        "[--try]",
        "[--wait SPAN]",
        "[OPTIONS] [NAME]... -- COMMAND...",
    ] {
        assert!(synopsis.contains(part), "{part}: {synopsis}");
    }
    let page = std::fs::read_to_string(folder.path().join("lockset.1")).unwrap();
    assert!(page.contains("Exit status"), "{page}");
    let nowhere = ended(&mut lockset("", &["man", "/no/such/folder"])).await;
    assert_eq!(nowhere.status, 64, "{nowhere:?}");
}

#[tokio::test]
async fn every_shell_has_completions_that_know_the_verbs() {
    let verbs = verbs().await;
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let printed = ended(&mut lockset("", &["completions", shell])).await;
        assert_eq!((printed.status, &*printed.err), (0, ""), "{shell}");
        let missing: Vec<_> = verbs
            .iter()
            .filter(|verb| !printed.out.contains(*verb))
            .collect();
        assert!(missing.is_empty(), "{shell}: {missing:?}");
    }
}

#[tokio::test]
async fn no_shell_offers_a_hidden_verb() {
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let printed = ended(&mut lockset("", &["completions", shell])).await.out;
        for about in ["Print names of locks", "Write the manual pages"] {
            assert!(!printed.contains(about), "{shell}: {about}");
        }
    }
    for beginning in ["na", "ma"] {
        assert_eq!(offered("", &["lockset", beginning]).await.trim(), "");
    }
    assert_eq!(offered("", &["lockset", "wa"]).await.trim(), "wait");
}

/// The completions of bash for a line whose last word is being typed.
async fn offered(url: &str, words: &[&str]) -> String {
    let printed = ended(&mut lockset("", &["completions", "bash"])).await.out;
    let line = words.join(" ");
    let folder = Path::new(LOCKSET).parent().unwrap().display();
    // Readline takes a colon for the end of a word.
    let last = words.last().unwrap().rsplit(':').next().unwrap();
    let script = format!(
        "{printed}\nPATH={folder}:$PATH; COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; COMP_WORDS=({line}); \
         COMP_CWORD={}; _lockset_with_names lockset '{last}' x; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.len() - 1
    );
    let mut bash = crate::support::program("bash", url, &["--norc", "-c", &script]);
    let ran = ended(&mut bash).await;
    assert_eq!(ran.err, "");
    ran.out
}

#[tokio::test]
async fn bash_offers_the_names_of_locks() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let mut guards = Vec::new();
    for name in ["order:7", "order:8", "desk", "$(touch x)"] {
        guards.push(client.lock(name).lock().await.unwrap());
    }
    let url = server.url();
    let names = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(
        names(&offered(&url, &["lockset", "show", "order:"]).await),
        ["7", "8"]
    );
    assert!(names(&offered(&url, &["lockset", "free", "de"]).await).contains(&"desk".to_owned()));
    let verbs = offered(&url, &["lockset", "sho"]).await;
    assert_eq!(names(&verbs), ["show"]);
    assert!(
        !offered(&url, &["lockset", "run", "a", "--", "de"])
            .await
            .contains("desk")
    );
    // All but the one that a shell would run.
    let all = ended(&mut lockset(&url, &["names"])).await;
    assert_eq!(
        (all.status, &*all.out, &*all.err),
        (0, "desk\norder:7\norder:8\n", "")
    );
}

/// Whether there is this shell. Where all tests have to run there is.
fn is_installed(shell: &str) -> bool {
    let is_there = |folder: std::path::PathBuf| folder.join(shell).exists();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = std::env::split_paths(&path).any(is_there);
    if !is_there {
        println!("not run: there is no {shell}");
        assert!(
            std::env::var("CI").as_deref() != Ok("true"),
            "install {shell}"
        );
    }
    is_there
}

/// In a shell as people use it. Where there is none, its text is looked at in the unit tests alone.
#[tokio::test]
async fn zsh_offers_the_names_of_locks() {
    if !is_installed("zsh") {
        return;
    }
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let mut guards = Vec::new();
    for name in ["order:7", "order:8", "desk"] {
        guards.push(client.lock(name).lock().await.unwrap());
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("_lockset");
    let printed = ended(&mut lockset("", &["completions", "zsh"])).await.out;
    std::fs::write(&file, printed).unwrap();
    let (file, bin) = (
        file.display(),
        Path::new(LOCKSET).parent().unwrap().display(),
    );

    let mut zsh = Terminal::open_shell(&server.url(), "zsh -f -i").await;
    zsh.enter(&format!(
        "bindkey -e; autoload -U compinit; compinit -D -u; source {file}; PATH={bin}:$PATH; echo loa''ded"
    ));
    zsh.shows("loaded").await;
    // Several: what they have in common is typed, and the next key lists them.
    zsh.press("lockset show or\t");
    zsh.shows("show order:").await;
    zsh.press("\t");
    zsh.shows("order:7").await;
    zsh.shows("order:8").await;
    const LINE_GONE: &str = "\x15";
    zsh.press(LINE_GONE);
    // One, behind options too. The line itself is not run.
    for (number, begin) in [
        "show",
        "wait",
        "run a",
        "run --try",
        "run --with-read",
        "free",
    ]
    .into_iter()
    .enumerate()
    {
        zsh.press(&format!("lockset {begin} de\t\x01echo line{number} \n"));
        zsh.shows(&format!("\nline{number} lockset {begin} desk"))
            .await;
    }
    // Behind one name a command may stand.
    let program = folder.path().join("deploy-everything");
    std::fs::write(&program, "").unwrap();
    let begin = format!("{}/deploy-e", folder.path().display());
    zsh.press(&format!("lockset run a {begin}\t\x01echo program \n"));
    let whole = format!("\nprogram lockset run a {}", program.display());
    zsh.shows(&whole).await;
    // Behind `--` stands a command.
    zsh.press("lockset run a -- de\t\x01echo other \n");
    zsh.shows("\nother").await;
    zsh.enter("echo at the e''nd");
    zsh.shows("at the end").await;
    assert!(!zsh.rest().contains("desk"));
}

/// Without fish, only the test of all shells looks at its completions.
#[tokio::test]
async fn fish_offers_the_names_of_locks() {
    if !is_installed("fish") {
        return;
    }
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let mut guards = Vec::new();
    for name in ["order:7", "order:8", "desk"] {
        guards.push(client.lock(name).lock().await.unwrap());
    }
    let printed = ended(&mut lockset("", &["completions", "fish"])).await.out;
    let bin = Path::new(LOCKSET).parent().unwrap().display();
    let offered = async |line: &str| {
        let script = format!("{printed}\nset -p PATH {bin}\ncomplete -C '{line}'");
        let url = server.url();
        let mut fish = crate::support::program("fish", &url, &["--no-config", "-c", &script]);
        let ran = ended(&mut fish).await;
        assert_eq!(ran.err, "", "{line}");
        ran.out
    };
    for begin in [
        "show",
        "wait",
        "run a",
        "run --try",
        "run --with-read",
        "free",
    ] {
        let line = format!("lockset {begin} order:");
        assert_eq!(offered(&line).await, "order:7\norder:8\n", "{line}");
    }
    // Behind `--` stands a command.
    assert!(!offered("lockset run a -- de").await.contains("desk"));
}

#[tokio::test]
async fn without_a_server_no_names_are_offered_and_nothing_is_said() {
    let server = Server::start();
    server.stop();
    for url in ["", "nonsense", "redis://127.0.0.1:1", &server.url()] {
        let began = std::time::Instant::now();
        let none = ended(&mut lockset(url, &["names", "or"])).await;
        assert_eq!((none.status, &*none.out, &*none.err), (0, "", ""), "{url}");
        assert!(began.elapsed().as_secs() < 5, "{url}");
    }
    server.cont();
}

#[tokio::test]
async fn the_completions_of_bash_can_be_loaded() {
    let printed = ended(&mut lockset("", &["completions", "bash"])).await.out;
    let script = format!(
        "{printed}\nCOMP_WORDS=(lockset ru); COMP_CWORD=1; _lockset lockset ru lockset\n\
         echo \"${{COMPREPLY[@]}}\""
    );
    let mut bash = crate::support::program("bash", "", &["--norc", "-c", &script]);
    let ran = ended(&mut bash).await;
    assert_eq!((&*ran.out, &*ran.err), ("run\n", ""));
}
