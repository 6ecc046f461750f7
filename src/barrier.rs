//! The barrier: parties that wait for each other, round after round.
//!
//! Invariants: a party counts once in a round, however often its call is sent; a party that leaves does not count
//! beside a later party of its client; all waiting parties learn one outcome of their round, passed or broken; a party
//! whose lease ends breaks the round; a party whose round the server has forgotten counts in no later round.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::api::error::{Error, Kind, Result};
use crate::client::Client;
use crate::engine::clock::Tick;
use crate::engine::hold::core::AtClose;
use crate::engine::keys::LockName;
use crate::engine::synchronizer::{
    CALL_KEPT_MIN, Synchronizer, shown_by_name, synchronizer_methods,
};
use crate::script::reply::{self, Arrived};
use crate::script::{Answer, Call, Script, catalog, millis};

/// The most parties of a barrier. One script ends a round, and it writes to each party.
const PARTIES_MAX: u32 = 1_000;

const PARTY_BYTES_MAX: usize = 256;

/// The longest time to repeat an arrival without an answer. Its round may have passed in the meantime, and the server
/// knows that for longer, so a repeat does not count in the next round.
const FIRST_ANSWER_MAX: Duration = CALL_KEPT_MIN.checked_div(2).unwrap();

/// How often a party asks in its lease, at least.
const POLLS_IN_LEASE: u32 = 6;

impl Client {
    /// A handle on the barrier called `name`, at which this many parties wait for each other: 1 to 1000.
    ///
    /// An invalid name or number is reported by the first call on the handle ([`is_invalid`](Error::is_invalid)).
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// let barrier = client.barrier("simulation", 4);
    /// let is_leader = barrier.wait().await?; // until four parties have come
    /// # drop(is_leader); Ok(()) }
    /// ```
    pub fn barrier(&self, name: impl AsRef<str>, parties: u32) -> Barrier {
        Barrier {
            site: Synchronizer::new(self, "barrier", name.as_ref(), Arc::default()),
            parties,
            party: None,
        }
    }
}

/// A barrier, at which parties wait for each other, round after round; from [`Client::barrier`].
///
/// A handle: cheap to make and to clone. Each call of [`wait`](Self::wait) is one party. When the last party has come,
/// all of them continue and the next round begins. A waiting party has the client's lease (at least 300 ms), which its
/// wait renews. If a party dies, or is not polled or cannot reach the server for the length of the lease, the round is
/// [broken](Error::is_broken) for all that wait, and the error names the party.
///
/// ```no_run
/// # async fn step() {}
/// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
/// let barrier = client.barrier("simulation", 4).party("worker-2");
/// for _ in 0..100 {
///     step().await;
///     match barrier.wait().await {
///         Ok(true) => println!("one of the four sums up"),
///         Ok(false) => {}
///         Err(error) if error.is_broken() => return Err(error), // names the party
///         Err(error) => return Err(error),
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a handle does nothing until one of its verbs is awaited"]
pub struct Barrier {
    site: Synchronizer,
    parties: u32,
    party: Option<Arc<str>>,
}

synchronizer_methods!(Barrier, "barrier");
shown_by_name!(Barrier);

impl Barrier {
    /// Sets the name under which others see this party if it breaks a round. Default: an id that begins with the [id of
    /// its client](Client::id).
    ///
    /// It says nothing about who counts: each call is a party, so two calls of one name are two. If a process dies and
    /// is started again under the same name, both count, until the lease of the first ends and breaks the round.
    pub fn party(mut self, name: impl AsRef<str>) -> Self {
        self.party = Some(name.as_ref().into());
        self
    }

    /// Waits until all parties have come. Returns `true` for one of them, the leader of the round.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the party in the background, and the others keep waiting for another one. If all
    /// parties had come already, the round has passed.
    ///
    /// # Errors
    /// * [`is_broken`](Error::is_broken): a party died, or could not reach the server for its lease, or gave up by
    ///   [`wait_for`](Self::wait_for), or the server has lost its data. All waiting parties get this error. The next call
    ///   begins a new round. A party that was not polled for a minute or more gets it too, even if its round has passed.
    /// * [`is_invalid`](Error::is_invalid): a name or number that cannot work, a key that holds something else, or the
    ///   waiting parties have another number of parties.
    /// * [`is_io`](Error::is_io): the server does not answer, for 30 s at most when the party comes. The party is
    ///   withdrawn in the background.
    /// * [`is_closed`](Error::is_closed): the client was shut down.
    pub async fn wait(&self) -> Result<bool> {
        self.wait_within("wait", None).await
    }

    /// Waits until all parties have come, for at most this long. After that the round is [broken](Error::is_broken) for
    /// all that wait, this party included.
    ///
    /// # Cancel safety
    /// As for [`wait`](Self::wait).
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub async fn wait_for(&self, limit: Duration) -> Result<bool> {
        self.wait_within("wait_for", Some(limit)).await
    }

    async fn wait_within(&self, operation: &'static str, limit: Option<Duration>) -> Result<bool> {
        self.check(operation)?;
        let name = self.site.name(operation)?;
        let deadline = self.site.deadline(limit);
        let place = Arc::new(Place::new(self, name));
        let _closed_with = self.site.core().close_with(Arc::downgrade(&place));
        let arrive = || place.arrive(operation, deadline);
        let channel = LockName::barrier_key;
        let over = self.site.wait(operation, channel, deadline, arrive).await?;
        let over = match over {
            Some(over) => over,
            None => {
                place.breaks.store(true, Ordering::Relaxed);
                // Breaks the round, unless it is over.
                let leave = place.leave();
                self.site.ask(operation, &leave, Tick::ZERO, read).await?
            }
        };
        place.is_left.store(true, Ordering::Relaxed);
        match over {
            Arrived::Passed { is_leader } => Ok(is_leader),
            Arrived::Broken { party, is_dead } => {
                let is_own = *party == place.party.id;
                Err(self.broken(operation, (&party, is_own), is_dead, limit))
            }
            Arrived::Parties(parties) => {
                let message = format!(
                    "those who wait have named {parties} parties, not {}; all have to name one number",
                    self.parties
                );
                Err(self.site.invalid(operation, message))
            }
            Arrived::Waits(_) => unreachable!("the round is over"),
        }
    }

    /// Returns how long a party lives unless it asks again. Two looks are at least 50 ms apart, even if the client's
    /// lease is short.
    fn lease(&self) -> Duration {
        let timing = self.site.core().timing;
        timing.lease.max(timing.poll_cap * POLLS_IN_LEASE)
    }

    fn check(&self, operation: &'static str) -> Result<()> {
        let message = match &self.party {
            _ if !(1..=PARTIES_MAX).contains(&self.parties) => {
                let parties = self.parties;
                format!("a barrier cannot have {parties} parties; use 1 to {PARTIES_MAX}")
            }
            Some(party) if party.is_empty() || party.len() > PARTY_BYTES_MAX => {
                let bytes = party.len();
                format!("the name of a party has 1 to {PARTY_BYTES_MAX} bytes, not {bytes}")
            }
            _ => return Ok(()),
        };
        Err(self.site.invalid(operation, message))
    }

    fn broken(
        &self,
        operation: &'static str,
        (party, is_own): (&str, bool),
        is_dead: bool,
        limit: Option<Duration>,
    ) -> Error {
        let message = match limit {
            _ if is_own && is_dead => {
                "this party asked too late, or the server has lost its data".to_owned()
            }
            Some(limit) if is_own => format!("not all came within {limit:?}"),
            _ if is_dead => {
                format!("the party {party:?} died, or could not reach the server for its lease")
            }
            _ => format!("the party {party:?} gave up"),
        };
        let message = format!("{message}, so the round is broken; wait again for the next one");
        self.site
            .error(Error::new(Kind::Broken, operation, message))
    }
}

/// The parties of one client that are leaving a barrier. Each is kept alive until the server has answered its
/// withdrawal.
#[derive(Default)]
struct Leaving(Mutex<Vec<Weak<Party>>>);

struct Party {
    id: String,
    leaving: Arc<Leaving>,
}

/// A party in a round; withdrawn when dropped.
struct Place {
    barrier: Barrier,
    name: LockName,
    party: Arc<Party>,
    keys: [String; 3],
    /// Whether the server has said that the party waits.
    has_come: AtomicBool,
    /// Whether the party's time is over, which breaks the round.
    breaks: AtomicBool,
    is_left: AtomicBool,
}

impl Place {
    fn new(barrier: &Barrier, name: &LockName) -> Self {
        let call = barrier.site.new_call();
        let id = match &barrier.party {
            Some(name) => format!("{} {name}", &*call),
            None => (*call).to_owned(),
        };
        let over = format!("{}{id}", name.barrier_over_prefix());
        let (key, shared) = (name.barrier_key(), &barrier.site.core().shared);
        let leaving = shared.get_or_insert("barrier", &key.as_str().into(), Arc::default);
        Self {
            barrier: barrier.clone(),
            name: name.clone(),
            party: Arc::new(Party { id, leaving }),
            keys: [key, name.barrier_arrivals_key(), over],
            has_come: AtomicBool::new(false),
            breaks: AtomicBool::new(false),
            is_left: AtomicBool::new(false),
        }
    }

    fn call(&self, script: &'static Script) -> Call {
        let keys = self.keys.each_ref().map(String::as_str);
        Call::new(script, self.name.key(), &keys).arg(&self.party.id)
    }

    /// Arrives, or renews the lease of a party that waits. `None`: not all parties have come.
    async fn arrive(&self, operation: &'static str, deadline: Tick) -> Result<Option<Arrived>> {
        let site = &self.barrier.site;
        let has_come = self.has_come.load(Ordering::Relaxed);
        let until = match has_come {
            true => deadline,
            false => deadline.min(site.deadline(Some(FIRST_ANSWER_MAX))),
        };
        let call = self
            .call(&catalog::BARRIER_ARRIVE)
            .arg(self.barrier.parties)
            .arg(millis(self.barrier.lease()))
            .arg(self.name.barrier_over_prefix())
            .arg(millis(site.call_kept()))
            .arg(site.told(self.name.barrier_key()))
            .arg(u8::from(has_come))
            .arg(if has_come { vec![] } else { self.gone() });
        let arrived = site.ask(operation, &call, until, read).await?;
        let waits = matches!(arrived, Arrived::Waits(_));
        self.has_come.fetch_or(waits, Ordering::Relaxed);
        Ok((!waits).then_some(arrived))
    }

    /// Returns the parties that are leaving, the last of them first. Their withdrawals may reach the server after this
    /// arrival.
    fn gone(&self) -> Vec<String> {
        let mut leaving = self.party.leaving.0.lock();
        leaving.retain(|party| party.strong_count() > 0);
        let gone = leaving.iter().rev().filter_map(Weak::upgrade);
        let ids = gone.map(|party| party.id.clone());
        ids.take(PARTIES_MAX as usize).collect()
    }

    fn leave(&self) -> Call {
        let site = &self.barrier.site;
        self.call(&catalog::BARRIER_LEAVE)
            .arg(u8::from(self.breaks.load(Ordering::Relaxed)))
            .arg(self.name.barrier_over_prefix())
            .arg(millis(site.call_kept()))
            .arg(site.told(self.name.barrier_key()))
    }

    /// Withdraws the party in the background, unless it has left or the round is over.
    fn withdraw(&self) {
        if self.is_left.swap(true, Ordering::Relaxed) {
            return;
        }
        let (site, party) = (&self.barrier.site, Arc::clone(&self.party));
        // A party that breaks the round is not named by later arrivals of its client, because its withdrawal has to
        // find it.
        if !self.breaks.load(Ordering::Relaxed) {
            party.leaving.0.lock().push(Arc::downgrade(&party));
        }
        // Sent behind the arrival, on the same lane.
        let kept = site.call_kept().max(self.barrier.lease());
        site.core()
            .undo_later(self.leave(), kept, (None, Some(party)));
    }
}

impl AtClose for Place {
    fn close(self: Arc<Self>) {
        self.withdraw();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.withdraw();
    }
}

fn read(answer: &Answer) -> Result<Arrived> {
    reply::arrived(&answer.value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Answer, Scripted};

    /// The others may have come in the meantime, and the server forgets after a minute that their round has passed.
    #[tokio::test(start_paused = true)]
    async fn a_party_without_an_answer_is_not_sent_again_for_ever() {
        let server = Scripted::new(|_| Answer::Silence);
        let client = Client::over(&server, Duration::from_secs(30));
        let barrier = client.barrier("x", 2).give_up_after(Duration::MAX);
        let waited = tokio::time::timeout(CALL_KEPT_MIN, barrier.wait());
        let error = waited.await.expect("an end").unwrap_err();
        assert!(error.is_io(), "{error}");
        drop(client);
        tokio::time::sleep(Duration::from_secs(300)).await;
        let sent = server.sent();
        let is_arrival = |sent: &&crate::testing::Sent| {
            sent.words
                .get(1)
                .is_some_and(|word| word == catalog::BARRIER_ARRIVE.sha())
        };
        let last = sent.iter().rfind(is_arrival).unwrap();
        assert!(last.at <= FIRST_ANSWER_MAX, "{last:?}");
    }

    /// A silent server may have counted the party, and may get its withdrawal after the arrival of the next party.
    #[tokio::test(start_paused = true)]
    async fn a_party_names_those_of_its_client_whose_withdrawal_has_no_answer() {
        let is_silent = Arc::new(AtomicBool::new(true));
        let silent = Arc::clone(&is_silent);
        let server = Scripted::new(move |_| match silent.load(Ordering::SeqCst) {
            true => Answer::Silence,
            false => Answer::Value(redis::Value::SimpleString("left:x".to_owned())),
        });
        let client = Client::over(&server, Duration::from_secs(30));
        let limit = Duration::from_secs(5);
        let comes = async |name: &str| {
            let barrier = client.barrier(name, 3).give_up_after(limit);
            let error = barrier.wait().await.unwrap_err();
            assert!(error.is_io() || error.is_broken(), "{error}");
            let sent = server.sent();
            let mut words = sent.into_iter().map(|sent| sent.words);
            let last = words.rfind(|words| words[1] == catalog::BARRIER_ARRIVE.sha());
            last.unwrap().split_off(6)
        };
        let (first, second) = (comes("x").await, comes("x").await);
        assert_eq!((first.len(), second.len()), (8, 9));
        assert_eq!(second[8], first[0]);
        assert_eq!(comes("y").await.len(), 8, "at another barrier");
        is_silent.store(false, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(comes("x").await.len(), 8);
    }

    /// The party is still at the server, and would count beside the next one once the user has the right again.
    #[tokio::test(start_paused = true)]
    async fn a_party_names_one_that_could_not_be_withdrawn_for_want_of_a_right() {
        let server = Scripted::new(move |_| Answer::Error("NOPERM No permissions to access a key"));
        let client = Client::over(&server, Duration::from_secs(30));
        let comes = async || {
            let error = client.barrier("x", 3).wait().await.unwrap_err();
            assert!(error.is_denied(), "{error}");
            tokio::time::sleep(Duration::from_secs(1)).await;
            let mut words = server.sent().into_iter().map(|sent| sent.words);
            let last = words.rfind(|words| words[1] == catalog::BARRIER_ARRIVE.sha());
            last.unwrap().split_off(6)
        };
        let (first, second) = (comes().await, comes().await);
        assert_eq!((first.len(), second.len()), (8, 9));
        assert_eq!(second[8], first[0]);
    }

    /// The withdrawal is late, and has to find the party at the server.
    #[tokio::test(start_paused = true)]
    async fn a_party_that_breaks_its_round_is_not_named_by_the_next() {
        let server = Scripted::new(|sent| match sent.words[1] == catalog::BARRIER_LEAVE.sha() {
            true => Answer::Silence,
            false => Answer::Value(redis::Value::Int(1)),
        });
        let client = Client::over(&server, Duration::from_secs(30));
        let limit = Duration::from_secs(5);
        let barrier = client.barrier("x", 3).give_up_after(limit);
        for arrived in 1..=2 {
            assert!(barrier.wait_for(limit).await.unwrap_err().is_io());
            let sent = server.sent().into_iter().map(|sent| sent.words);
            let arrivals = sent.filter(|words| words[1] == catalog::BARRIER_ARRIVE.sha());
            let first = arrivals.filter(|words| words[13] == "0");
            let named: Vec<_> = first.map(|words| words.len() - 14).collect();
            assert_eq!(named, vec![0; arrived]);
        }
    }
}
