//! The multi-lock: several locks of any kind, all of them or none.
//!
//! This module has the public types; `acquire/several.rs` takes the locks. Invariant: members are in the order of their
//! keys, one order for all multi-locks, so that no two of them wait for each other.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};

use crate::any_lock::AnyLock;
use crate::api::error::{Error, Result};
use crate::api::fencing::FencingToken;
use crate::api::guard::guard_methods;
use crate::api::handle::Handle;
use crate::api::holder::{Busy, Owner};
use crate::api::loss::{Losable, LostReason};
use crate::api::options::Options;
use crate::api::verbs::option_methods;
use crate::conn::{Lane, Transport};
use crate::engine::acquire::{self, LockRequest};
use crate::engine::clock::Tick;
use crate::engine::hold::Share;
use crate::engine::hold::bundle::Bundle;
use crate::fair::FairLock;
use crate::observe::call::{LockCall, Waited, place_of};
use crate::observe::counts::CountedKind;
use crate::reentrant::ReentrantLock;
use crate::rwlock::{ReadSide, WriteSide};

/// The most members of a [`MultiLock`]. It bounds how long its script blocks the server.
pub const MULTI_LOCK_MEMBERS_MAX: usize = 100;

/// The kind of a multi-lock in counts and spans.
const KIND: CountedKind = CountedKind::Multi;

/// The operation in errors of [`MultiLock::new`].
const NEW: &str = "multi_lock";

/// A lock as a member of a [`MultiLock`], with the options of its handle. Reentrant locks, fair locks, the
/// sides of a read-write lock and [`AnyLock`]s convert into it.
///
/// ```no_run
/// # fn doc(client: lockset::Client) {
/// use lockset::Member;
///
/// let members = [Member::from(client.lock("order:7")), client.fair_lock("desk:1").into()];
/// assert_eq!(members[0].name(), "order:7");
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Member(Handle);

macro_rules! member {
    ($($lock:ident)*) => {
        $(
            impl From<$lock> for Member {
                fn from(lock: $lock) -> Self {
                    Self(lock.0)
                }
            }

            impl From<&$lock> for Member {
                fn from(lock: &$lock) -> Self {
                    Self(lock.0.clone())
                }
            }
        )*
    };
}

member!(ReentrantLock FairLock ReadSide WriteSide AnyLock);

impl From<&Self> for Member {
    fn from(member: &Self) -> Self {
        member.clone()
    }
}

/// The members of a new [`MultiLock`]: a list of locks of one kind or of [`Member`]s, or a tuple of two to eight locks
/// of any kinds.
///
/// `Form` tells lists from tuples. The compiler infers it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a list nor a tuple of locks",
    note = "put locks of several kinds into a tuple of up to eight, or convert each into a `Member`; \
            of an `RwLock` take its `read_side()` or `write_side()`"
)]
pub trait Members<Form> {
    /// Returns the members, in any order.
    fn into_members(self) -> Vec<Member>;
}

impl<I: IntoIterator<Item: Into<Member>>> Members<Member> for I {
    fn into_members(self) -> Vec<Member> {
        self.into_iter().map(Into::into).collect()
    }
}

macro_rules! tuple {
    ($($lock:ident $at:tt)*) => {
        impl<$($lock: Into<Member>,)*> Members<($($lock,)*)> for ($($lock,)*) {
            fn into_members(self) -> Vec<Member> {
                vec![$(self.$at.into(),)*]
            }
        }
    };
}

tuple!(A 0 B 1);
tuple!(A 0 B 1 C 2);
tuple!(A 0 B 1 C 2 D 3);
tuple!(A 0 B 1 C 2 D 3 E 4);
tuple!(A 0 B 1 C 2 D 3 E 4 F 5);
tuple!(A 0 B 1 C 2 D 3 E 4 F 5 G 6);
tuple!(A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7);

impl Member {
    /// The name of the lock, as it was given to the client.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.given_name()
    }
}

/// Several locks acquired as one: all of them, or none.
///
/// A handle: cheap to clone, it holds nothing. Members are [`ReentrantLock`]s, [`FairLock`]s, and the
/// [`read_side`](crate::RwLock::read_side) or [`write_side`](crate::RwLock::write_side) of
/// [`RwLock`](crate::RwLock)s, in any mix: locks of one kind as a list, locks of several kinds as a tuple, or as a list
/// of [`Member`]s.
///
/// * Members of one client are acquired by one script in one round trip, and released in one write; in a cluster, the
///   members of one slot. Nothing is held while it waits.
/// * Members of several clients, or in several slots of a cluster, are acquired in the order of their names, one after
///   the other, within one time budget. While it waits for a member, the members before it are held, for less than a
///   lease; then all are released and it starts over. They are released in reverse. A call that is kept and not polled
///   leaves what it has to its lease.
/// * Two multi-locks over the same members cannot deadlock, even if they list them in different orders.
/// * Waiters of one client queue; clients do not. The first to ask when all members are free gets them: one task,
///   against 64 tasks of another client with the same members, gets about one grant in three.
/// * It cannot be acquired while its members are never all free at the same moment. Beside others that acquire them one
///   by one without a pause it may wait for long. In that case, put a single lock around both.
/// * Options of this handle hold for all members, in place of theirs. With [`at_least`](Self::at_least), if one member is
///   lost, the others are released at once; with [`max_hold`](Self::max_hold) the guard is lost with its first member.
///   If members are acquired one after the other, its span begins when all are held, and the lock of a process that dies
///   may stay for twice the span.
///   [`give_up_after`](Self::give_up_after) limits the silence of the server that is being asked.
/// * A fair member is acquired when it is free and no other waiter is before this one in its queue. The waiter has a
///   place there only while it waits for that member. It removes the place while other members are in the way, so that
///   no waiter waits behind one that cannot go on.
///
/// ```no_run
/// # async fn doc() -> Result<(), Box<dyn std::error::Error>> {
/// use lockset::MultiLock;
///
/// let client = lockset::Client::connect("redis://127.0.0.1:6379").await?;
/// let both = MultiLock::new((client.lock("order:7"), client.rw_lock("prices").read_side()))?;
///
/// let guard = both.lock().await?;
/// guard.run(async { /* work on both */ }).await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a handle does nothing until one of its verbs is awaited"]
pub struct MultiLock(Several);

option_methods!(MultiLock);

/// The members in the order of their keys, and options for all of them.
#[derive(Clone)]
struct Several {
    members: Arc<[Handle]>,
    options: Options,
}

impl Several {
    fn given_name(&self) -> &str {
        self.members[0].given_name()
    }

    fn names(&self) -> Vec<&str> {
        self.members
            .iter()
            .map(|member| member.given_name())
            .collect()
    }

    fn options_mut(&mut self) -> &mut Options {
        &mut self.options
    }

    fn set_group(&mut self, name: &str) {
        self.options.group = self.members[0].core().observed().group(name);
    }

    /// Writes the handle for `Debug`, on one line.
    fn show(&self, kind: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct(kind);
        shown.field("names", &self.names());
        self.options.show(&mut shown);
        shown.finish()
    }
}

impl MultiLock {
    /// A lock of these members: at least one, at most [`MULTI_LOCK_MEMBERS_MAX`].
    ///
    /// A member that is listed several times with the same options counts once: an order may have two lines
    /// of one item.
    ///
    /// # Errors
    /// [`is_invalid`](crate::Error::is_invalid): too few or too many members, an invalid name, or two members
    /// of one name at one address that differ in kind, options or client, or whose clients are known to reach one server
    /// by two addresses.
    ///
    /// ```no_run
    /// # fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// let accounts = lockset::MultiLock::new([client.lock("account:1"), client.lock("account:2")])?;
    /// assert_eq!(accounts.names(), ["account:1", "account:2"]);
    /// # Ok(()) }
    /// ```
    ///
    /// Locks of several kinds are a tuple, or a list of [`Member`]s:
    ///
    /// ```no_run
    /// # fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// use lockset::MultiLock;
    ///
    /// let order = MultiLock::new((client.lock("order:7"), client.fair_lock("desk:1")))?;
    /// assert_eq!(order.names(), ["desk:1", "order:7"]);
    /// # Ok(()) }
    /// ```
    pub fn new<F>(members: impl Members<F>) -> Result<Self> {
        let members = members.into_members().into_iter();
        let mut members: Vec<Handle> = members.map(|member| member.0).collect();
        if members.is_empty() {
            return Err(invalid("a multi-lock needs at least one member"));
        }
        for member in &members {
            member.name(NEW)?;
        }
        let place = |member: &Handle| {
            let key = member.name(NEW).ok().map(|name| Arc::clone(name.key()));
            (key, member.core().scripts.transport.address().to_owned())
        };
        members.sort_by_cached_key(place);
        for pair in members.windows(2) {
            if place(&pair[0]) != place(&pair[1]) {
                continue;
            }
            if let Some(difference) = pair[0].differs_from(&pair[1]) {
                let message = format!(
                    "it is a member twice, {difference}; list it once, or the same way each time"
                );
                return Err(invalid(message).of_lock(pair[0].given_name()));
            }
        }
        // Members at one place are equal here.
        members.dedup_by(|one, other| place(one) == place(other));
        if members.len() > MULTI_LOCK_MEMBERS_MAX {
            return Err(invalid(format!(
                "a multi-lock of {} members; give at most {MULTI_LOCK_MEMBERS_MAX}",
                members.len()
            )));
        }
        check_twins(&members, NEW)?;
        Ok(Self(Several {
            members: members.into(),
            options: Options::default(),
        }))
    }

    /// The names of the members, in the order of acquisition.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        self.0.names()
    }

    /// Acquires all members, waiting until they are free.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no member held and no place in a queue.
    ///
    /// # Errors
    /// As for [`ReentrantLock::lock`] and [`RwLock::write`](crate::RwLock::write).
    /// [`lock_name`](crate::Error::lock_name) is the member that failed, or all of them if it concerns all.
    /// [`is_invalid`](crate::Error::is_invalid) also if two members of one name are one lock, which [`new`](Self::new)
    /// could not find because a client had not connected.
    ///
    /// ```no_run
    /// # async fn doc(both: lockset::MultiLock) -> lockset::Result<()> {
    /// let guard = both.lock().await?;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn lock(&self) -> Result<MultiGuard> {
        let acquired = self.acquire("lock", Tick::NEVER).await?;
        Ok(acquired.expect("a wait without a deadline does not time out"))
    }

    /// Acquires all members if all are free, or held by the same owner. `None`: one is not, and none is
    /// acquired.
    ///
    /// # Cancel safety
    /// As for [`lock`](Self::lock).
    ///
    /// # Errors
    /// As for [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<MultiGuard>> {
        self.acquire("try_lock", Tick::ZERO).await
    }

    /// Acquires all members, waiting at most `wait` for all of them together. `None`: they did not become
    /// free in time, and none is acquired.
    ///
    /// # Cancel safety
    /// As for [`lock`](Self::lock).
    ///
    /// # Errors
    /// As for [`lock`](Self::lock), with the limits of [`ReentrantLock::try_lock_for`].
    pub async fn try_lock_for(&self, wait: Duration) -> Result<Option<MultiGuard>> {
        let deadline = self.0.members[0].core().clock.now().after(wait);
        self.acquire("try_lock_for", deadline).await
    }

    /// Returns the holder in the way at the first member that is held, and how long its lease lasts without a renewal.
    /// `None`: no member is held. One round trip for each member, all at once; the answer may be outdated when it
    /// arrives.
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    ///
    /// # Errors
    /// As for [`lock`](Self::lock).
    pub async fn busy(&self) -> Result<Option<Busy>> {
        let asked = self.0.members.iter().map(|member| {
            let mut member = member.clone();
            member.options_mut().give_up = self.0.options.give_up.or(member.options.give_up);
            async move { member.busy().await }
        });
        let seen: Vec<_> = try_join_all(asked).await?;
        Ok(seen.into_iter().flatten().next())
    }

    pub(crate) async fn refused(&self) -> Busy {
        self.0.members[0].busy_in_time(self.busy()).await
    }

    async fn acquire(&self, operation: &'static str, until: Tick) -> Result<Option<MultiGuard>> {
        if twins(&self.0.members).next().is_some() {
            Box::pin(check_connected(&self.0.members, operation)).await?;
        }
        let mut requests = self.requests(operation)?;
        acquire::prepare_several(&mut requests);
        let core = self.0.members[0].core();
        let lock_call = LockCall::begin(core, KIND, self.name(), &self.0.options);
        let call = pin!(acquire::several(&requests, until, lock_call.began));
        let most = || self.0.members.iter().map(Handle::waiters).max();
        // The call waits for one member at a time.
        let queued = || requests.iter().find(|each| each.queued.number().is_some());
        let place = || async { place_of(queued()?).await };
        let waited = || async {
            let (place, busy) = tokio::join!(place(), self.refused());
            Waited(most().unwrap_or_default(), place, busy)
        };
        let call = pin!(lock_call.told_if_long(until > Tick::ZERO, waited, call));
        let guarded = |shares: Vec<Share>| -> Vec<Share> {
            let shares = shares.into_iter().zip(&requests);
            let guarded =
                shares.map(|(share, request)| share.guarded(request.kept_until(), Duration::ZERO));
            guarded.collect()
        };
        // In the span of the call, which the spans of the holds follow from.
        let call = async { Ok(call.await?.map(guarded)) };
        let got = lock_call.guarded(call).await?;
        Ok(got.map(|(shares, timer)| MultiGuard(Bundle::of(shares, timer))))
    }

    fn requests(&self, operation: &'static str) -> Result<Vec<LockRequest>> {
        // Members without an owner share one, so that the guard has one.
        let all = &self.0.options;
        let owner = all.owner.clone().unwrap_or_else(Owner::new);
        let request = |member: &Handle| {
            let mut options = Options::clone(&member.options);
            if all.owner.is_some() || options.owner.is_none() {
                options.owner = Some(owner.clone());
            }
            options.policy = all.policy.or(options.policy);
            options.max_hold = all.max_hold.or(options.max_hold);
            options.at_least = all.at_least.or(options.at_least);
            options.fenced |= all.fenced;
            options.replication = all.replication.or(options.replication);
            options.give_up = all.give_up.or(options.give_up);
            options.polled = all.polled.or(options.polled);
            options.group = all.group.or(options.group);
            member.asking(options.into(), operation)
        };
        self.0.members.iter().map(request).collect()
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::invalid(NEW, message)
}

/// Checks that no two members are one lock, as far as the clients know their servers.
fn check_twins(members: &[Handle], operation: &'static str) -> Result<()> {
    for [one, other] in twins(members) {
        let [a, b] = [one, other].map(|twin| transport(twin).process(Lane::Command, key(twin)));
        if a.zip(b).is_some_and(|(a, b)| a.is_same_run(&b)) {
            let message = format!(
                "it is a member twice: {} and {} are one server; list it once",
                transport(one).address(),
                transport(other).address(),
            );
            return Err(Error::invalid(operation, message).of_lock(one.given_name()));
        }
    }
    Ok(())
}

/// Checks the members again after their clients have connected. A server that does not answer is left to the attempt.
async fn check_connected(members: &[Handle], operation: &'static str) -> Result<()> {
    let mut probe = redis::cmd("EVAL");
    probe.arg("return 1").arg(0);
    let is_unknown =
        |twin: &&Handle| transport(twin).last_reply_at(Lane::Command, key(twin)) == Tick::ZERO;
    let unknown = twins(members).flatten().filter(is_unknown);
    let connected = unknown.map(|twin| {
        let limit = twin.core().timing.reply;
        transport(twin).send(Lane::Command, key(twin), &probe, limit)
    });
    join_all(connected).await;
    check_twins(members, operation)
}

/// Returns pairs of members with one name and database, but different addresses. They may be one lock, because two
/// clients can reach one server by two addresses. A multi-lock of such members would wait for itself.
///
/// A client knows the process of a server once it has connected. `members` are in the order of their keys.
fn twins(members: &[Handle]) -> impl Iterator<Item = [&Handle; 2]> {
    let each = members.iter().enumerate();
    each.flat_map(move |(at, one)| {
        let others = members[at + 1..].iter();
        let others = others.take_while(move |other| key(other) == key(one));
        let others = others.filter(move |other| database(other) == database(one));
        others.map(move |other| [one, other])
    })
}

fn key(member: &Handle) -> &str {
    member.name(NEW).map_or("", |name| &**name.key())
}

/// Returns the number of the database, which ends an address. A cluster has only the database 0.
fn database(member: &Handle) -> &str {
    let address = transport(member).address();
    address.rsplit_once('/').map_or("0", |(_, number)| number)
}

fn transport(member: &Handle) -> &dyn Transport {
    &*member.core().scripts.transport
}

/// One hold on every member of a [`MultiLock`]; dropping it releases them in the background.
///
/// It is lost when any member is lost. The others are then released at once, so stop the work
/// ([`run`](Self::run) does). Use [`release`](Self::release) to know that all were held to the end.
///
/// **A program that ends right after the drop leaves the locks held** until their leases end. End with
/// [`release`](Self::release), or with [`Client::shutdown`](crate::Client::shutdown), which waits for the
/// releases of dropped guards.
///
/// ```no_run
/// # async fn doc(both: lockset::MultiLock) -> lockset::Result<()> {
/// let guard = both.lock().await?;
/// println!("{:?} are held", guard.names());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "if unused the locks are released at once"]
#[clippy::has_significant_drop]
pub struct MultiGuard(Bundle);

guard_methods!(MultiGuard);

impl MultiGuard {
    /// The names of the members, in the order of acquisition.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        self.0.names().collect()
    }

    /// The holder id of each member at its server, in the order of [`names`](Self::names).
    #[must_use]
    pub fn holder_ids(&self) -> Vec<&str> {
        self.0.holder_ids().collect()
    }

    /// The fencing token of each member, in the order of [`names`](Self::names); `None` for members that are
    /// not `fenced()`.
    ///
    /// ```no_run
    /// # async fn doc(both: lockset::MultiLock) -> lockset::Result<()> {
    /// let guard = both.fenced().lock().await?;
    /// for (name, token) in guard.names().into_iter().zip(guard.fencing_tokens()) {
    ///     println!("{name}: {token:?}");
    /// }
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn fencing_tokens(&self) -> Vec<Option<FencingToken>> {
        self.0.fencing_tokens().collect()
    }

    /// Waits until a member is lost, and returns its name and the reason.
    ///
    /// # Cancel safety
    /// Cancel safe. It may be called any number of times, also after the loss.
    ///
    /// ```no_run
    /// # async fn doc(guard: lockset::MultiGuard) {
    /// let (name, reason) = guard.lost_member().await;
    /// println!("{name}: {reason}");
    /// # }
    /// ```
    pub async fn lost_member(&self) -> (&str, LostReason) {
        self.0.lost_member().await
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;
    use crate::client::Client;
    use crate::testing::{Answer, Scripted, granted};

    /// The question that connects its clients is a part of the call.
    #[tokio::test(start_paused = true)]
    async fn a_call_over_several_servers_ends_in_time_while_one_of_them_refuses() {
        const MS: Duration = Duration::from_millis(1);
        for answer in ["LOADING the dataset", "declined"] {
            let up = Scripted::at("a:1", |sent| match sent.is_release() {
                true => Answer::Value(Value::Int(1)),
                false => Answer::Value(granted()),
            });
            let down = Scripted::at("b:1", move |_| match answer {
                "declined" => Answer::Declined("ERR max number of clients reached"),
                _ => Answer::Error(answer),
            });
            let clients = [&up, &down].map(|server| Client::over(server, MS * 30_000));
            let both =
                || MultiLock::new(clients.each_ref().map(|client| client.lock("k"))).unwrap();
            for (lock, limit) in [(both(), 2_100), (both().give_up_after(MS * 100), 300)] {
                let began = tokio::time::Instant::now();
                lock.try_lock().await.unwrap_err();
                assert!(
                    began.elapsed() < MS * limit,
                    "{answer}: {:?}",
                    began.elapsed()
                );
            }
        }
    }
}
