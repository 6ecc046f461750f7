//! The hall in front of the desk: sends customers to the doors and collects their reports.

use std::time::Duration;

use lockset::FairLock;
use tokio::time::sleep;

use crate::DOORS;
use crate::door::Event;
use crate::support::Result;
use crate::support::server::LockServer;
use crate::support::worker::Worker;

pub(crate) struct Hall {
    /// `None` after the process was killed.
    doors: Vec<Option<Worker>>,
    /// The served customers in the order of their grants, once all have left.
    served: Vec<(u64, usize)>,
}

impl Hall {
    pub(crate) async fn build(kind: &str, desk: &str, server: &LockServer) -> Result<Self> {
        let mut doors = Vec::new();
        for name in DOORS {
            let args = ["door", kind, desk];
            doors.push(Worker::start(format!("door {name}"), &args, &server.url)?);
        }
        for door in &mut doors {
            door.ready().await?;
        }
        Ok(Self {
            doors: doors.into_iter().map(Some).collect(),
            served: Vec::new(),
        })
    }

    /// Sends one customer to a door.
    pub(crate) async fn let_in(&mut self, number: usize) -> Result<()> {
        let door = door_of(number);
        if let Some(door) = &mut self.doors[door] {
            door.tell(&number.to_string()).await?;
        }
        self.hear_until(door, Event::Came(number)).await
    }

    /// Reads a door's reports up to this event.
    pub(crate) async fn hear_until(&mut self, door: usize, awaited: Event) -> Result<()> {
        while let Some(event) = self.hear(door).await? {
            if event == awaited {
                return Ok(());
            }
        }
        Err(format!("door {} closed", DOORS[door]).into())
    }

    async fn hear(&mut self, door: usize) -> Result<Option<Event>> {
        let Some(door) = &mut self.doors[door] else {
            return Ok(None);
        };
        let Some(line) = door.line().await? else {
            return Ok(None);
        };
        let event = line.parse()?;
        if let Event::Served(number, token) = event {
            self.served.push((token, number));
        }
        Ok(Some(event))
    }

    /// Kills a process while its customers wait.
    pub(crate) async fn kill(&mut self, door: usize) {
        if let Some(mut door) = self.doors[door].take() {
            door.kill().await;
        }
    }

    /// Waits until all customers have left. Returns the served customers in order, because tokens
    /// grow from grant to grant.
    pub(crate) async fn served(mut self) -> Result<Vec<usize>> {
        for door in self.doors.iter_mut().flatten() {
            door.that_is_all();
        }
        for door in 0..self.doors.len() {
            while self.hear(door).await?.is_some() {}
        }
        self.served.sort_unstable();
        Ok(self.served.into_iter().map(|(_, number)| number).collect())
    }
}

/// The doors take turns.
pub(crate) fn door_of(number: usize) -> usize {
    (number - 1) % DOORS.len()
}

/// The labels of customers, such as `A1 B2 C3`.
pub(crate) fn labels(numbers: &[usize]) -> String {
    let label = |number: &usize| format!("{}{number}", DOORS[door_of(*number)]);
    numbers.iter().map(label).collect::<Vec<_>>().join(" ")
}

/// The id of the waiter that is new in the queue.
pub(crate) async fn new_waiter(desk: &FairLock, known: &[String]) -> Result<String> {
    loop {
        let waiters = desk.waiters().await?;
        if let Some(new) = waiters.into_iter().find(|id| !known.contains(id)) {
            return Ok(new);
        }
        sleep(Duration::from_millis(1)).await;
    }
}
