//! `top`: a live view of the locks of a server.

mod draw;
mod model;
mod sample;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use lockset_operator::Survey;
use ratatui::DefaultTerminal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, kill_process};
use rustix::stdio::stdin;
use serde::Serialize;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};

use self::model::{Action, Model, Row, State, WATCHED_MAX};
use self::sample::{Sampler, Wanted, check};
use crate::child::Signals;
use crate::connect::Context;
use crate::failure::{Failure, Outcome};
use crate::{span, status};

/// The most of the server's time, in percent, that a view may take for as long as it is open.
const BUDGET_MAX: f64 = 50.0;

/// A server that does not answer for this long is left out of a look.
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// Between two frames: a bar drains in small steps.
const FRAME: Duration = Duration::from_millis(200);

/// The message of an end that no action of a user causes.
const NOBODY_LOOKS: &str = "what looks at the locks has ended; this is a defect of lockset";

/// The time that the thread of the keys waits for a key before it checks whether the view has ended.
const KEY_WAIT: Duration = Duration::from_millis(100);

/// How many such times the end of that thread is awaited: its terminal may hang up while it reads.
const ENDS_MAX: usize = 5;

/// Watch the locks of a server: holders, ages, remaining leases, waiters.
///
/// A bar drains with each lease and jumps back at each renewal. A bar that keeps draining is not renewed: the
/// holder is dead, paused or cut off, or the lease is not meant to be renewed (`fixed_lease`, `once`,
/// `at_least`). Into a pipe it writes one JSON object a second.
#[derive(Args)]
#[command(
    after_help = "Keys:\n  up, down, j, k  choose      enter  its page     esc    back      ?  help\n  \
    /  filter       s  sort      space  freeze       q  quit        Ctrl-Z  stop"
)]
pub(crate) struct Top {
    /// Only names that match: `*` any letters, `?` one, `[ab]` one of these.
    #[arg(default_value = "*")]
    glob: String,
    /// The part of the server's time that looking for locks may take, in percent.
    #[arg(long, default_value_t = 0.5, value_parser = span::percent, value_name = "PERCENT")]
    budget: f64,
}

/// One line of the output into a pipe.
#[derive(Serialize)]
struct Second<'a> {
    at_ms: u128,
    server: &'a str,
    clients: usize,
    locks: usize,
    grants_per_second: f64,
    top: Vec<LockLine<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<&'a str>,
}

#[derive(Serialize)]
struct LockLine<'a> {
    name: &'a str,
    kind: &'a str,
    holder: &'a str,
    who: &'a str,
    state: &'static str,
    age_ms: u128,
    remaining_ms: Option<u128>,
    waiters: usize,
    longest_wait_ms: Option<u128>,
    grants_per_second: f64,
    token: Option<u64>,
}

impl Top {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        if self.budget > BUDGET_MAX {
            return Err(Failure::usage(format!(
                "give a budget of {BUDGET_MAX} percent at most"
            )));
        }
        let client = context.client_that_gives_up(SILENCE_MAX).await?;
        let survey = Survey::new(&client).matching(&self.glob);
        check(&survey).await?;
        let began = Instant::now();
        let (want, wanted) = watch::channel(Wanted::default());
        let (samples, mut inbox) = mpsc::channel(4);
        let sampler = Sampler::new(survey, self.budget / 100.0, began, wanted, samples);
        let sampler = tokio::spawn(sampler.run());
        let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
        let ended = if is_terminal && !context.output.json {
            on_terminal(began, &want, &mut inbox).await
        } else {
            let piped = into_pipe(context, &want, &mut inbox).await;
            piped.map(|()| None)
        };
        sampler.abort();
        let signal = ended?;
        client.shutdown().await?;
        Ok(signal.map_or(status::OK, status::signalled))
    }
}

/// The locks that the sampler looks at for this view.
fn wants(model: &Model) -> Wanted {
    let rows = model.rows();
    let at = model.at(&rows);
    let first = at.saturating_sub(WATCHED_MAX / 2);
    let names = rows.iter().skip(first).take(WATCHED_MAX);
    Wanted {
        names: names.map(|row| row.seen.name.clone()).collect(),
        selected: model.selected(),
    }
}

/// Draws until a key or a signal ends the view. Returns the signal.
async fn on_terminal(
    began: Instant,
    want: &watch::Sender<Wanted>,
    inbox: &mut mpsc::Receiver<model::Sample>,
) -> Result<Option<Signal>, Failure> {
    let mut signals = Signals::ending().map_err(Failure::internal)?;
    let mut ended_by = None;
    let mut terminal = ratatui::try_init().map_err(Failure::internal)?;
    let (keys, mut pressed) = mpsc::unbounded_channel();
    let is_over = Arc::new(AtomicBool::new(false));
    let reader = std::thread::spawn({
        let is_over = Arc::clone(&is_over);
        move || read_keys(&keys, &is_over)
    });
    let mut model = Model::default();
    let mut frames = interval(FRAME);
    frames.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut drawn = Ok(());
    while !model.is_over && drawn.is_ok() {
        tokio::select! {
            _ = frames.tick() => {}
            // The loop ends, so that the terminal is restored.
            signal = signals.next() => {
                ended_by = Some(signal);
                model.is_over = true;
            }
            sample = inbox.recv() => match sample {
                Some(sample) => model.take(sample),
                None => drawn = Err(io::Error::other(NOBODY_LOOKS)),
            },
            key = pressed.recv() => match key {
                Some(Event::Key(key)) if is_stop(key) => terminal = stopped()?,
                Some(Event::Key(key)) => {
                    if let Some(action) = action(&model, key) {
                        model.act(action);
                    }
                }
                Some(_) => {}
                // The terminal is gone.
                None => model.is_over = true,
            },
        }
        // The sampler may have ended.
        let _ = want.send(wants(&model));
        if drawn.is_ok() {
            let now = began.elapsed();
            let frame = terminal.draw(|frame| draw::draw(frame, &model, now));
            drawn = frame.map(drop);
        }
    }
    is_over.store(true, Ordering::Release);
    // Keys that are pressed after the restore belong to the shell.
    for _ in 0..ENDS_MAX {
        if reader.is_finished() {
            break;
        }
        sleep(KEY_WAIT).await;
    }
    // These fail where the terminal is gone. The drop of a terminal would then panic, because it cannot say so.
    let _ = ratatui::try_restore();
    if terminal.show_cursor().is_err() {
        std::mem::forget(terminal);
    }
    drawn.map(|()| ended_by).map_err(Failure::internal)
}

fn is_stop(key: KeyEvent) -> bool {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    is_control && key.code == KeyCode::Char('z') && key.kind != KeyEventKind::Release
}

/// Restores the terminal and stops this process, as Ctrl-Z does outside the raw mode. Returns a new screen once the
/// process is continued.
fn stopped() -> Result<DefaultTerminal, Failure> {
    ratatui::try_restore().map_err(Failure::internal)?;
    kill_process(getpid(), Signal::TSTP).map_err(Failure::internal)?;
    ratatui::try_init().map_err(Failure::internal)
}

/// Reads until the view ends, or the terminal does.
fn read_keys(keys: &mpsc::UnboundedSender<Event>, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Acquire) && !is_gone() {
        loop {
            match event::poll(Duration::ZERO) {
                Ok(false) => break,
                Ok(true) => {}
                Err(_) => return,
            }
            let Ok(event) = event::read() else { return };
            if keys.send(event).is_err() {
                return;
            }
        }
    }
}

/// Waits for a key, for a while. Returns whether the terminal is gone: crossterm would read it without end.
fn is_gone() -> bool {
    let input = stdin();
    let mut polled = [PollFd::new(&input, PollFlags::IN)];
    let limit = Timespec::try_from(KEY_WAIT).ok();
    // An error is a signal to this process.
    let _ = poll(&mut polled, limit.as_ref());
    let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    polled[0].revents().intersects(gone)
}

fn action(model: &Model, key: KeyEvent) -> Option<Action> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(match key.code {
        KeyCode::Char('c' | 'd') if is_control => Action::Quit,
        KeyCode::Up => Action::Up,
        KeyCode::Down => Action::Down,
        KeyCode::Enter => Action::Open,
        KeyCode::Esc => Action::Back,
        KeyCode::Backspace => Action::Erase,
        KeyCode::Char(letter) if model.is_filtering => Action::Letter(letter),
        KeyCode::Char('q') => Action::Quit,
        KeyCode::Char('?') => Action::Help,
        KeyCode::Char('k') => Action::Up,
        KeyCode::Char('j') => Action::Down,
        KeyCode::Char('s') => Action::Sort,
        KeyCode::Char(' ') => Action::Freeze,
        KeyCode::Char('/') => Action::Filter,
        _ => return None,
    })
}

async fn into_pipe(
    context: &Context,
    want: &watch::Sender<Wanted>,
    inbox: &mut mpsc::Receiver<model::Sample>,
) -> Result<(), Failure> {
    let mut model = Model::default();
    while let Some(sample) = inbox.recv().await {
        model.take(sample);
        let _ = want.send(wants(&model));
        let at = model.last.at;
        let rows = model.rows();
        let line = Second {
            at_ms: at.as_millis(),
            server: &model.last.server,
            clients: model.last.clients,
            locks: model.held(),
            grants_per_second: model.rate(),
            top: rows.iter().take(20).map(|row| lock_line(row, at)).collect(),
            trouble: model.last.trouble.as_deref(),
        };
        let line = serde_json::to_string(&line).map_err(Failure::internal)?;
        if !context.output.is_read(&line)? {
            return Ok(());
        }
    }
    Err(Failure::internal(NOBODY_LOOKS))
}

fn lock_line(row: &Row, at: Duration) -> LockLine<'_> {
    LockLine {
        name: &row.seen.name,
        kind: row.seen.kind,
        holder: &row.seen.holder,
        who: &row.seen.who,
        state: match row.state {
            State::Held => "held",
            State::Late => "late",
            State::Free => "free",
            State::Expired => "expired",
        },
        age_ms: row.age(at).as_millis(),
        remaining_ms: row.remaining(at).map(|left| left.as_millis()),
        waiters: row.seen.waiters,
        longest_wait_ms: row.seen.longest_wait.map(|wait| wait.as_millis()),
        grants_per_second: row.rate,
        token: row.seen.token,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::process::{Command, Stdio};

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::tcgetattr;

    use super::*;

    #[tokio::test]
    #[ignore = "not a test: the other process of the one below"]
    async fn a_view_that_panics() {
        let (want, _wanted) = watch::channel(Wanted::default());
        let (_samples, mut inbox) = mpsc::channel(4);
        let view = on_terminal(Instant::now(), &want, &mut inbox);
        let mistake = async {
            sleep(FRAME * 2).await;
            panic!("by mistake");
        };
        let _: (_, ()) = tokio::join!(view, mistake);
    }

    #[test]
    fn a_panic_gives_the_terminal_back_before_it_is_told() {
        let main = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&main).unwrap();
        unlockpt(&main).unwrap();
        let path = ptsname(&main, Vec::new()).unwrap().into_string().unwrap();
        let user = File::options().read(true).write(true).open(path).unwrap();
        let before = tcgetattr(&user).unwrap().local_modes;
        let stdio = || Stdio::from(user.try_clone().unwrap());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--nocapture", "--exact"])
            .arg("verb::top::tests::a_view_that_panics")
            .stdin(stdio())
            .stdout(stdio())
            .stderr(stdio())
            .spawn()
            .unwrap();
        let reader = std::thread::spawn(move || {
            let (mut main, mut written) = (File::from(main), Vec::new());
            let mut some = [0; 4096];
            // The reader ends when the last process has closed the terminal.
            while let Ok(length @ 1..) = main.read(&mut some) {
                written.extend_from_slice(&some[..length]);
            }
            String::from_utf8_lossy(&written).into_owned()
        });
        assert_eq!(child.wait().unwrap().code(), Some(101));
        assert_eq!(tcgetattr(&user).unwrap().local_modes, before);
        drop(user);
        let text = reader.join().unwrap();
        let at = |what: &str| {
            text.rfind(what)
                .unwrap_or_else(|| panic!("{what:?}: {text:?}"))
        };
        let [taken, left, told] = ["\x1b[?1049h", "\x1b[?1049l", "by mistake"].map(at);
        assert!(taken < left && left < told, "{text:?}");
        assert!(at("\x1b[?25l") < at("\x1b[?25h"), "the cursor: {text:?}");
    }
}
