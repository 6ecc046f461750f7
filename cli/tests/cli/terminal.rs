//! On a terminal, in an interactive shell: keys, job control, input.
//!
//! Commands wait with `read`: a shell that is just starting another program may miss a key.

use std::time::Duration;

use lockset::Client;
use lockset_testkit::{Server, eventually, within};

use crate::support::{BOUND, Terminal, is_stopped};

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

#[tokio::test]
async fn ctrl_c_ends_the_command() {
    let server = Server::start();
    let mut terminal = Terminal::open(&server.url()).await;
    terminal.enter("$L run a -- sh -c 'echo be''gun; read x'");
    terminal.shows("begun").await;
    ended_by_ctrl_c(&server, &mut terminal).await;
}

#[tokio::test]
async fn ctrl_c_ends_a_wait() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let lock = client.fair_lock("a");
    let guard = lock.lock().await.unwrap();
    let mut terminal = Terminal::open(&server.url()).await;
    for wait in [
        "$L run a --fair -- true",
        "sh -c '$L run a --fair -- true; echo went o''n'",
        "bash -c '$L run a --fair -- true; echo went o''n'",
    ] {
        terminal.enter(wait);
        let waits = async || lock.waiters().await.unwrap().len() == 1;
        eventually(BOUND, "it waits", waits).await;
        terminal.press(CTRL_C);
        let left = async || lock.waiters().await.unwrap().is_empty();
        eventually(BOUND, "its place is gone", left).await;
        terminal.enter("echo sta''tus $?");
        let seen = terminal.shows("status 130").await;
        assert!(!seen.contains("went on"), "{wait}");
    }
    guard.release().await.unwrap();
}

#[tokio::test]
async fn the_command_reads_what_is_typed() {
    let server = Server::start();
    let mut terminal = Terminal::open(&server.url()).await;
    terminal.enter("$L run a -- sh -c 'echo be''gun; read x; echo re''ad $x'; echo sta''tus $?");
    terminal.shows("begun").await;
    terminal.enter("words");
    terminal.shows("read words").await;
    terminal.shows("status 0").await;
    terminal.enter("echo the shell reads ag''ain");
    terminal.shows("the shell reads again").await;
}

#[tokio::test]
async fn a_job_is_stopped_and_goes_on() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let mut terminal = Terminal::open(&server.url()).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let script = format!(
        "echo $$ >{}; echo be''gun; read x; echo re''ad $x",
        file.display()
    );
    terminal.enter(&format!("$L run a -- sh -c '{script}'; echo sta''tus $?"));
    terminal.shows("begun").await;
    let pid = std::fs::read_to_string(&file).unwrap();
    let pid = pid.trim().parse().unwrap();
    for round in ["first", "second"] {
        terminal.press(CTRL_Z);
        // Not by the word of bash, which may say nothing of a job that stops right after `fg`.
        eventually(BOUND, "it stops", async || is_stopped(pid)).await;
        terminal.enter(&format!("echo {round} the shell has the ter''minal"));
        terminal
            .shows(&format!("{round} the shell has the terminal"))
            .await;
        assert!(client.lock("a").is_locked().await.unwrap());
        terminal.enter("fg");
        terminal.shows("run a").await;
        // A key that is pressed before belongs to the shell.
        eventually(BOUND, "it goes on", async || !is_stopped(pid)).await;
    }
    terminal.enter("words");
    terminal.shows("read words").await;
    // The list was ended by the stop: what is behind the command was run then.
    terminal.enter("wait; echo free ag''ain");
    terminal.shows("free again").await;
    let is_free = async || !client.lock("a").is_locked().await.unwrap();
    eventually(BOUND, "released", is_free).await;
}

/// A key that is pressed while the job is coming to the foreground: the job stops, or the key is lost and the
/// job stops at the next one.
#[tokio::test]
async fn a_key_right_after_fg_stops_the_job_again() {
    let server = Server::start();
    let mut terminal = Terminal::open(&server.url()).await;
    terminal.enter("$L run a -- sh -c 'echo be''gun; while read x; do :; done'");
    terminal.shows("begun").await;
    terminal.press(CTRL_Z);
    terminal.shows("Stopped").await;
    for round in 0..60_u64 {
        terminal.enter(&format!("echo round''{round}; fg"));
        terminal.shows(&format!("round{round}")).await;
        terminal.shows("run a").await;
        // From before SIGCONT until after the command goes on; a timer would be too coarse.
        std::thread::sleep(Duration::from_micros(25 * round));
        terminal.stop_job().await;
    }
}

/// A stop signal takes away a SIGCONT that is still to be delivered: this process goes on without having seen
/// it, here because it ignores it.
#[tokio::test]
async fn a_key_that_comes_instead_of_sigcont_stops_the_job_again() {
    let server = Server::start();
    let mut terminal = Terminal::open(&server.url()).await;
    terminal.enter("env --ignore-signal=CONT $L run a -- sh -c 'echo be''gun; read x'");
    terminal.shows("begun").await;
    for _ in 0..3 {
        terminal.stop_job().await;
        terminal.enter("fg");
        terminal.shows("run a").await;
    }
    terminal.stop_job().await;
}

#[tokio::test]
async fn a_job_that_is_stopped_for_too_long_does_not_go_on() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let mut terminal = Terminal::open(&server.url()).await;
    terminal.enter("$L run a --lease 1s -- sh -c 'echo be''gun; read x; echo went o''n'");
    terminal.shows("begun").await;
    terminal.press(CTRL_Z);
    terminal.shows("Stopped").await;
    let guard = within(BOUND, client.lock("a").lock()).await.unwrap();
    terminal.enter("fg; echo sta''tus $?");
    terminal.shows("status 76").await;
    assert!(!terminal.rest().contains("went on"));
    assert!(!guard.is_lost());
}

/// The shell, seeing that a key has ended what it waited for, forgets the rest of the line. Returns what the screen
/// showed until then.
async fn ended_by_ctrl_c(server: &Server, terminal: &mut Terminal) -> String {
    let client = Client::connect(&server.url()).await.unwrap();
    terminal.press(CTRL_C);
    let is_free = async || !client.lock("a").is_locked().await.unwrap();
    eventually(BOUND, "released", is_free).await;
    terminal.enter("echo sta''tus $?");
    terminal.shows("status 130").await
}

#[tokio::test]
async fn ctrl_c_ends_the_script_that_waits_for_the_command() {
    let server = Server::start();
    for shell in ["sh", "bash"] {
        let mut terminal = Terminal::open(&server.url()).await;
        let script = "$L run a -- sh -c 'echo be''gun; read x'; echo went o''n";
        terminal.enter(&format!("{shell} -c \"{script}\""));
        terminal.shows("begun").await;
        let seen = ended_by_ctrl_c(&server, &mut terminal).await;
        assert!(!seen.contains("went on"), "{shell}");
    }
}

#[tokio::test]
async fn a_job_in_the_background_comes_to_the_foreground() {
    let server = Server::start();
    let mut terminal = Terminal::open(&server.url()).await;
    terminal.enter("$L run a -- sh -c 'echo be''gun; read x; echo re''ad $x' &");
    // It reads from a terminal that is not its own.
    terminal.shows("begun").await;
    terminal.enter("until jobs | grep -q Stop; do sleep 0.05; done; echo sto''pped");
    terminal.shows("stopped").await;
    terminal.enter("fg");
    terminal.shows("run a").await;
    terminal.enter("words");
    terminal.shows("read words").await;
}

/// Its last part has the terminal: a command that reads from it is stopped, and still ends.
#[tokio::test]
async fn ctrl_c_ends_all_of_a_pipeline() {
    let server = Server::start();
    let mut terminal = Terminal::open(&server.url()).await;
    terminal.enter("$L run a -- sh -c 'echo pi''ped; read x' | cat");
    terminal.shows("piped").await;
    ended_by_ctrl_c(&server, &mut terminal).await;
}

/// The shell of a script gives its jobs in the background no group of their own, so the script keeps the terminal.
#[tokio::test]
async fn a_job_in_the_background_of_a_script_leaves_the_terminal_to_the_script() {
    let server = Server::start();
    for shell in ["sh", "bash"] {
        let mut terminal = Terminal::open(&server.url()).await;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("script");
        let script = "$L run a -- sh -c 'echo begun; while :; do sleep 0.05; done' &
            read x
            echo the script read $x
            kill $!
            wait $!
            echo status $?";
        std::fs::write(&file, script).unwrap();
        terminal.enter(&format!("{shell} {}", file.display()));
        terminal.shows("begun").await;
        terminal.enter("words");
        terminal.shows("the script read words").await;
        terminal.shows("status 143").await;
    }
}

/// The command reads from the pipe, and what writes to it may ask for a password.
#[tokio::test]
async fn the_first_part_of_a_pipeline_reads_from_the_terminal() {
    let server = Server::start();
    let mut terminal = Terminal::open(&server.url()).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("begun");
    let file = file.display();
    let first = format!("until test -e {file}; do sleep 0.05; done; read x </dev/tty; echo $x");
    let last = format!("echo >{file}; read y; echo pi''ped $y; read z </dev/tty; echo re''ad $z");
    terminal.enter(&format!("sh -c '{first}' | $L run a -- sh -c '{last}'"));
    terminal.enter("words");
    terminal.shows("piped words").await;
    // A command that wants the terminal itself gets it then.
    terminal.enter("others");
    terminal.shows("read others").await;
    terminal.enter("echo the shell reads ag''ain");
    terminal.shows("the shell reads again").await;
}

#[tokio::test]
async fn a_terminal_that_is_closed_ends_the_command() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let mut terminal = Terminal::open(&server.url()).await;
    terminal.enter("$L run a -- sh -c 'echo be''gun; read x'");
    terminal.shows("begun").await;
    drop(terminal);
    let is_free = async || !client.lock("a").is_locked().await.unwrap();
    eventually(BOUND, "released", is_free).await;
}

#[tokio::test]
async fn the_live_view_is_stopped_and_continued() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let guard = client.lock("held-lock").lock().await.unwrap();
    let mut terminal = Terminal::open(&server.url()).await;
    terminal.enter("stty rows 24 cols 80; TERM=xterm $L top; echo sta''tus $?");
    terminal.shows("held-lock").await;
    terminal.stop_job().await;
    terminal.enter("stty -a | grep -o ' icanon' | tr -d ' '; stty -a | grep -o ' echo '");
    terminal.shows("icanon").await;
    terminal.enter("fg");
    terminal.shows("held-lock").await;
    terminal.press("q");
    // A key that is pressed before the view has ended belongs to the view.
    terminal.shows("\x1b[?1049l").await;
    terminal.enter("echo the shell is ba''ck");
    terminal.shows("the shell is back").await;
    drop(guard);
}
