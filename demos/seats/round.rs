//! One round: opens the box offices, lets all people in at once and collects the results.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use futures_util::future::{join, try_join_all};
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::try_join;

use crate::database::{Database, Sale};
use crate::office::{Served, Turn};
use crate::report::Progress;
use crate::support::topology::Topology;
use crate::support::worker::{Worker, bounded};
use crate::support::{Result, Rule};
use crate::{OFFICES, PEOPLE, SEATS};

/// A round with a slower box office fails.
const BOUND: Duration = Duration::from_secs(60);

pub(crate) struct Round {
    /// The reports of the box offices.
    pub(crate) served: Vec<Served>,
    /// The sales in the database.
    pub(crate) sales: Vec<Sale>,
    /// The time from the start until the last person was served.
    pub(crate) wall: Duration,
    /// The fault that happened halfway.
    pub(crate) befell: Option<&'static str>,
}

impl Round {
    pub(crate) async fn play(
        title: &'static str,
        database: &Database,
        topology: &Topology,
        lock: Option<&str>,
    ) -> Result<Self> {
        let mut offices = Vec::new();
        for number in 0..OFFICES {
            offices.push(open(number, database, &topology.url(), lock)?);
        }
        let half = Notify::new();
        let befall = async {
            half.notified().await;
            match lock {
                Some(lock) => topology.befall(lock).await,
                None => None,
            }
        };
        let serve = serve(title, &mut offices, &half);
        let both = async { Ok(join(serve, befall).await) };
        let played = bounded(BOUND, both).await;
        for office in &mut offices {
            office.kill().await;
        }
        let (served, befell) = played?;
        let (served, wall) = served?;
        Ok(Self {
            served,
            sales: database.sales()?,
            wall,
            befell,
        })
    }

    pub(crate) fn oversold(&self) -> usize {
        self.sales.len().saturating_sub(SEATS)
    }

    pub(crate) fn refused(&self) -> usize {
        let turns = self.turns();
        turns.filter(|turn| !turn.bought).count()
    }

    pub(crate) fn turns(&self) -> impl Iterator<Item = &Turn> {
        self.served.iter().map(|served| &served.turn)
    }

    /// The conditions that hold if the lock works.
    pub(crate) fn rules(&self) -> Vec<Rule> {
        let seated: HashSet<_> = self.sales.iter().map(|sale| sale.person).collect();
        let bought = self.served.iter().filter(|served| served.turn.bought);
        let told: HashSet<_> = bought.map(|served| served.person).collect();
        let tokens: Option<Vec<_>> = self.sales.iter().map(|sale| sale.token).collect();
        let growing = tokens.is_some_and(|tokens| tokens.is_sorted_by(|a, b| a < b));
        vec![
            (self.sales.len() == SEATS, "not every seat was sold once"),
            (
                self.refused() == PEOPLE - SEATS,
                "not all others were refused",
            ),
            (seated.len() == self.sales.len(), "a person has two seats"),
            (seated == told, "a person got a wrong answer"),
            (growing, "a fencing token did not grow"),
        ]
    }
}

/// Lets all people in at the same moment and waits until all are served. Returns how long it took.
/// `half` is notified when half of them are served.
async fn serve(
    title: &'static str,
    offices: &mut [Worker],
    half: &Notify,
) -> Result<(Vec<Served>, Duration)> {
    for office in offices.iter_mut() {
        office.ready().await?;
    }
    let start = Instant::now();
    for office in offices.iter_mut() {
        office.tell("go").await?;
    }
    // A channel, because four box offices report concurrently.
    let (tell, mut told) = mpsc::unbounded_channel();
    let all = try_join_all(
        offices
            .iter_mut()
            .map(|office| listen(office, tell.clone())),
    );
    drop(tell);
    let count = async {
        let mut progress = Progress::start(title);
        let mut served = Vec::with_capacity(PEOPLE);
        let mut wall = Duration::ZERO;
        while let Some(one) = told.recv().await {
            served.push(one);
            wall = start.elapsed();
            if served.len() == PEOPLE / 2 {
                half.notify_one();
            }
            progress.show(served.len());
        }
        Ok((served, wall))
    };
    let (_, counted) = try_join!(all, count)?;
    Ok(counted)
}

fn open(number: usize, database: &Database, url: &str, lock: Option<&str>) -> Result<Worker> {
    let number = number.to_string();
    let path = database.path().to_str().ok_or("a path that is no text")?;
    let mut args = vec!["office", &number, path];
    args.extend(lock);
    Worker::start(format!("box office {number}"), &args, url)
}

/// Forwards the report of each person served, until the process has ended.
async fn listen(office: &mut Worker, tell: UnboundedSender<Served>) -> Result<()> {
    office.that_is_all();
    while let Some(line) = office.line().await? {
        tell.send(line.parse()?)?;
    }
    Ok(())
}
