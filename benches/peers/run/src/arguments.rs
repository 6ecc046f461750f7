//! The command line.

use std::path::PathBuf;

const USAGE: &str = "peers-run measure|build|draw [--rounds N] [--seconds S] [--peers a,b] [--address HOST:PORT] [--out DIR] [--results DIR]";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Measure,
    Build,
    Draw,
}

#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) verb: Verb,
    pub(crate) rounds: usize,
    /// Of one job of one peer in one round.
    pub(crate) seconds: f64,
    /// Names of the peers to run; all, if there are none.
    pub(crate) peers: Vec<String>,
    /// A server that runs already. Without it the run starts one of its own.
    pub(crate) address: Option<String>,
    /// Where harnesses are built, and write what they have to say.
    pub(crate) out: PathBuf,
    pub(crate) results: PathBuf,
}

impl Arguments {
    pub(crate) fn of_this_run() -> Result<Self, String> {
        Self::parse(std::env::args().skip(1)).ok_or_else(|| format!("usage: {USAGE}"))
    }

    fn parse(mut words: impl Iterator<Item = String>) -> Option<Self> {
        let verb = match &*words.next()? {
            "measure" => Verb::Measure,
            "build" => Verb::Build,
            "draw" => Verb::Draw,
            _ => return None,
        };
        let mut arguments = Self {
            verb,
            rounds: 5,
            seconds: 1.5,
            peers: Vec::new(),
            address: None,
            out: PathBuf::from("target/bench-peers"),
            results: PathBuf::from("benches/peers/results"),
        };
        while let Some(flag) = words.next() {
            let value = words.next()?;
            match &*flag {
                "--rounds" => arguments.rounds = value.parse().ok().filter(|&n| n > 0)?,
                "--seconds" => arguments.seconds = value.parse().ok().filter(|&s| s > 0.0)?,
                "--peers" => arguments.peers = value.split(',').map(str::to_owned).collect(),
                "--address" => arguments.address = Some(value),
                "--out" => arguments.out = PathBuf::from(value),
                "--results" => arguments.results = PathBuf::from(value),
                _ => return None,
            }
        }
        Some(arguments)
    }

    /// Whether the peer of this name is to run. Without the floor there are no ratios.
    pub(crate) fn wants(&self, peer: &str) -> bool {
        peer == "floor" || self.peers.is_empty() || self.peers.iter().any(|name| name == peer)
    }
}
