//! A harness that runs: a process that is asked line by line and lives for the whole run.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use crate::arguments::Arguments;
use crate::figures::Turn;
use crate::peers::Peer;

/// How long a harness may take to be ready: a JVM, and all of Redisson's connections.
const READY_BOUND: Duration = Duration::from_secs(60);

/// How long it may take over what it was given: starved waiters have to come to an end, too.
pub(crate) const GRACE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Harness {
    child: Child,
    requests: ChildStdin,
    /// Each line it says, and when it came.
    answers: Receiver<(Instant, String)>,
    /// Its versions, in its own words.
    pub(crate) versions: String,
}

/// The result of a job.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    /// The turns of each task.
    Done {
        tasks: Vec<Vec<Turn>>,
        failures: u64,
        violations: u64,
    },
    /// The library cannot do it, as it has no such lock.
    Lacks(String),
}

impl Harness {
    pub(crate) fn start(peer: &Peer, arguments: &Arguments, address: &str) -> Result<Self, String> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(peer.log(arguments));
        let log = log.map_err(|error| error.to_string())?;
        let mut child = spawn(peer.start(arguments, address).stderr(log))?;
        let requests = child.stdin.take().expect("it was asked for");
        let lines = BufReader::new(child.stdout.take().expect("it was asked for")).lines();
        let (sender, answers) = mpsc::channel();
        // Ends with the process.
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if sender.send((Instant::now(), line)).is_err() {
                    break;
                }
            }
        });
        let mut harness = Self {
            child,
            requests,
            answers,
            versions: String::new(),
        };
        let (_, ready) = harness.answer(READY_BOUND)?;
        match ready.strip_prefix("ready ") {
            Some(versions) => harness.versions = versions.to_owned(),
            None => return Err(format!("it said {ready:?} instead of being ready")),
        }
        Ok(harness)
    }

    pub(crate) fn ask(&mut self, request: &str) -> Result<(), String> {
        let asked = writeln!(self.requests, "{request}").and_then(|()| self.requests.flush());
        asked.map_err(|_| "it has ended".to_owned())
    }

    /// The next line it says, and when it came.
    pub(crate) fn answer(&mut self, bound: Duration) -> Result<(Instant, String), String> {
        self.answers
            .recv_timeout(bound)
            .map_err(|error| match error {
                mpsc::RecvTimeoutError::Timeout => format!("no answer for {} s", bound.as_secs()),
                mpsc::RecvTimeoutError::Disconnected => "it ended early".to_owned(),
            })
    }

    /// Reads the result of the requested job.
    fn done(&mut self, bound: Duration) -> Result<Answer, String> {
        let mut tasks = Vec::new();
        loop {
            let (_, line) = self.answer(bound)?;
            match read(&line)? {
                Line::Turns(turns) => tasks.push(turns),
                Line::Done(failures, violations) => {
                    return Ok(Answer::Done {
                        tasks,
                        failures,
                        violations,
                    });
                }
                Line::Lacks(what) => return Ok(Answer::Lacks(what)),
            }
        }
    }

    /// Kills it, with `SIGKILL`.
    pub(crate) fn kill(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A job from request to answer, at the same time in all of these processes, at least one.
pub(crate) fn run(
    all: &mut [&mut Harness],
    request: &str,
    bound: Duration,
) -> Result<Answer, String> {
    for harness in &mut *all {
        harness.ask(request)?;
    }
    let answers = all.iter_mut().map(|harness| harness.done(bound));
    let answers: Vec<Answer> = answers.collect::<Result<_, _>>()?;
    let together = answers.into_iter().reduce(Answer::and);
    together.ok_or_else(|| "no process was asked".to_owned())
}

impl Answer {
    /// Of another process at the same job.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (
                Self::Done {
                    mut tasks,
                    failures,
                    violations,
                },
                Self::Done {
                    tasks: more,
                    failures: more_failures,
                    violations: more_violations,
                },
            ) => {
                tasks.extend(more);
                Self::Done {
                    tasks,
                    failures: failures + more_failures,
                    violations: violations + more_violations,
                }
            }
            (Self::Lacks(what), _) | (_, Self::Lacks(what)) => Self::Lacks(what),
        }
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(command: &mut Command) -> Result<Child, String> {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().map_err(|error| error.to_string())
}

#[derive(Debug, PartialEq)]
enum Line {
    Turns(Vec<Turn>),
    Done(u64, u64),
    Lacks(String),
}

fn read(line: &str) -> Result<Line, String> {
    let bad = || format!("not an answer: {:.80}", line);
    let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
    match verb {
        "turns" => {
            let turns = rest.split_ascii_whitespace().map(Turn::read);
            let turns: Option<_> = turns.collect();
            turns.map(Line::Turns).ok_or_else(bad)
        }
        "done" => {
            let numbers = rest.split_once(' ').ok_or_else(bad)?;
            match (numbers.0.parse(), numbers.1.parse()) {
                (Ok(failures), Ok(violations)) => Ok(Line::Done(failures, violations)),
                _ => Err(bad()),
            }
        }
        "lacks" => Ok(Line::Lacks(rest.to_owned())),
        _ => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_processes_did_is_one_answer_in_their_order() {
        let turn = |asked| Turn {
            asked,
            granted: asked,
            worked: asked,
            released: asked,
        };
        let done = |asked, failures, violations| Answer::Done {
            tasks: vec![vec![turn(asked)]],
            failures,
            violations,
        };
        let both = Answer::Done {
            tasks: vec![vec![turn(1)], vec![turn(2)]],
            failures: 3,
            violations: 1,
        };
        assert_eq!(done(1, 1, 0).and(done(2, 2, 1)), both);
        let lacks = || Answer::Lacks("no fair lock".to_owned());
        assert_eq!(done(1, 0, 0).and(lacks()), lacks());
    }

    #[test]
    fn lines_are_read() {
        let turn = |asked, granted, worked, released| Turn {
            asked,
            granted,
            worked,
            released,
        };
        let turns = vec![turn(0, 5, 9, 12), turn(12, 13, 14, 15)];
        assert_eq!(read("turns 0,5,9,12 12,13,14,15"), Ok(Line::Turns(turns)));
        assert_eq!(read("turns"), Ok(Line::Turns(Vec::new())));
        assert_eq!(read("done 3 0"), Ok(Line::Done(3, 0)));
        assert_eq!(
            read("lacks no fair lock"),
            Ok(Line::Lacks("no fair lock".to_owned()))
        );
        for line in [
            "",
            "turns 1,2,3",
            "done 3",
            "done a b",
            "Exception in thread",
        ] {
            assert!(read(line).is_err(), "{line:?}");
        }
    }
}
