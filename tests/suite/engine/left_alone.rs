//! Operations whose future was polled and is then kept without being polled.
//!
//! The client drives each operation to its end, or its claim ends with its lease. Other callers go on.

use std::pin::Pin;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockset::{Client, Guard as _, LockKind, Member, MultiLock, Owner, Redlock};
use lockset_operator::Survey;
use lockset_testkit::{Server, eventually, unique_name, within};

use crate::primitive::{Primitive, for_every_primitive};
use crate::support::{
    BY_MESSAGE, LEASE, SLACK, SOON, client, idle, nothing_left, patient_client, took_less, waiting,
};

/// Time for an answer of a server on this machine.
const ANSWER: Duration = Duration::from_millis(5);

/// A future is left alone after each number of polls up to this.
const POLLS: usize = 8;

/// Polls a future so often, each time after an answer had time to arrive. Returns its output if it ends.
async fn polled<T>(future: &mut BoxFuture<'_, T>, polls: usize) -> Option<T> {
    for poll in 0..polls {
        if poll > 0 {
            tokio::time::sleep(ANSWER).await;
        }
        if let Some(output) = Pin::new(&mut *future).now_or_never() {
            return Some(output);
        }
    }
    None
}

/// The lock is free for another client, long before a lease is over.
async fn is_free<P: Primitive>(theirs: &Client, name: &str) {
    let lock = P::of(theirs, name);
    let guard = within(SOON, lock.lock()).await.unwrap();
    guard.release().await.unwrap();
}

async fn a_re_entry_left_alone_holds_up_no_other_guard<P: Primitive>() {
    let server = Server::start();
    let (ours, theirs) = (
        patient_client(&server.url()).await,
        patient_client(&server.url()).await,
    );
    for polls in 1..=3 {
        for terms in 0..3 {
            let (name, owner) = (unique_name("lock"), Owner::new());
            let lock = P::of(&ours, &name).owner(&owner);
            let first = lock.lock().await.unwrap();
            let again = match terms {
                0 => lock.clone(),
                1 => lock.clone().lease(LEASE * 60),
                _ => lock.clone().fenced(),
            };
            let mut entry = async move { again.lock().await }.boxed();
            let entered = polled(&mut entry, polls).await;
            within(SOON, first.release()).await.unwrap();
            if let Some(entered) = entered {
                within(SOON, entered.unwrap().release()).await.unwrap();
            }
            is_free::<P::Rival>(&theirs, &name).await;
            // A future that goes on finds a free lock.
            drop(entry);
            idle(&ours).await;
        }
    }
    nothing_left(&server).await;
}

async fn a_guard_dropped_beside_a_re_entry_is_released<P: Primitive>() {
    let server = Server::start();
    let (ours, theirs) = (
        patient_client(&server.url()).await,
        patient_client(&server.url()).await,
    );
    let (name, owner) = (unique_name("lock"), Owner::new());
    let lock = P::of(&ours, &name).owner(&owner);
    let first = lock.lock().await.unwrap();
    let again = lock.clone().lease(LEASE * 60);
    let mut entry = async move { again.lock().await }.boxed();
    let entered = polled(&mut entry, 1).await;
    drop((first, entered));
    is_free::<P::Rival>(&theirs, &name).await;
    drop(entry);
    idle(&ours).await;
    nothing_left(&server).await;
}

async fn a_release_left_alone_holds_up_no_other<P: Primitive>() {
    let server = Server::start();
    let (ours, theirs) = (
        patient_client(&server.url()).await,
        patient_client(&server.url()).await,
    );
    for polls in 1..=3 {
        let (name, owner) = (unique_name("lock"), Owner::new());
        let lock = P::of(&ours, &name).owner(&owner);
        let (first, second) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
        let mut release = first.release().boxed();
        let _released = polled(&mut release, polls).await;
        within(SOON, second.release()).await.unwrap();
        is_free::<P::Rival>(&theirs, &name).await;
        drop(release);
        // The only guard.
        let mut release = lock.lock().await.unwrap().release().boxed();
        let _released = polled(&mut release, polls).await;
        is_free::<P::Rival>(&ours, &name).await;
        is_free::<P::Rival>(&theirs, &name).await;
        drop(release);
        idle(&ours).await;
    }
    nothing_left(&server).await;
}

async fn a_hold_that_is_left_at_the_server_ends_in_time<P: Primitive>() {
    let server = Server::start();
    let (ours, theirs) = (
        patient_client(&server.url()).await,
        patient_client(&server.url()).await,
    );
    let name = unique_name("lock");
    let guard = P::of(&ours, &name).at_least(LEASE).lock().await.unwrap();
    let mut release = guard.release().boxed();
    let _released = polled(&mut release, 1).await;
    is_free::<P::Rival>(&theirs, &name).await;
    drop(release);
    idle(&ours).await;
    nothing_left(&server).await;
}

/// Later waiters of the same client do not wait for the subscription of a call that nobody polls.
async fn a_subscription_left_alone_costs_later_waiters_nothing<P: Primitive>() {
    let server = Server::start();
    let (ours, theirs) = (
        patient_client(&server.url()).await,
        patient_client(&server.url()).await,
    );
    for polls in 1..=POLLS {
        let name = unique_name("lock");
        let guard = P::rival(&theirs, &name).lock().await.unwrap();
        let lock = P::of(&ours, &name);
        let left = lock.clone();
        let mut call = async move { left.lock().await }.boxed();
        assert!(polled(&mut call, polls).await.is_none(), "it is held");
        // The server has refused it: an attempt that is on its way might be granted, for as long as a lease.
        ours.ping().await.unwrap();
        tokio::time::sleep(ANSWER).await;
        // The first one behind it waits until it is passed over.
        let behind = lock.clone();
        let behind = lockset_testkit::spawn(async move { behind.lock().await?.release().await });
        waiting(&ours, 2).await;
        guard.release().await.unwrap();
        within(SOON, behind).await.unwrap().unwrap();
        let guard = P::rival(&theirs, &name).lock().await.unwrap();
        let later = lockset_testkit::spawn(async move { lock.lock().await?.release().await });
        waiting(&ours, 2).await;
        // It has been refused and listens.
        tokio::time::sleep(ANSWER * 4).await;
        let began = std::time::Instant::now();
        guard.release().await.unwrap();
        within(SOON, later).await.unwrap().unwrap();
        took_less(began, BY_MESSAGE);
        drop(call);
        idle(&ours).await;
    }
    nothing_left(&server).await;
}

for_every_primitive! {"current_thread":
    a_re_entry_left_alone_holds_up_no_other_guard
    a_guard_dropped_beside_a_re_entry_is_released
    a_release_left_alone_holds_up_no_other
    a_hold_that_is_left_at_the_server_ends_in_time
    a_subscription_left_alone_costs_later_waiters_nothing
}

for_every_primitive! {@redlock lockset::RedlockLock, [], "current_thread":
    a_re_entry_left_alone_holds_up_no_other_guard
    a_guard_dropped_beside_a_re_entry_is_released
    a_release_left_alone_holds_up_no_other
    a_hold_that_is_left_at_the_server_ends_in_time
    a_subscription_left_alone_costs_later_waiters_nothing
}

#[tokio::test(flavor = "current_thread")]
async fn a_downgrade_left_alone_lets_readers_in() {
    let server = Server::start();
    let (ours, theirs) = (
        patient_client(&server.url()).await,
        patient_client(&server.url()).await,
    );
    for polls in 1..=3 {
        let (name, owner) = (unique_name("lock"), Owner::new());
        let lock = ours.rw_lock(&name).owner(&owner);
        let (writer, reader) = (lock.write().await.unwrap(), lock.read().await.unwrap());
        let mut downgrade = writer.downgrade().boxed();
        let downgraded = polled(&mut downgrade, polls).await;
        within(SOON, reader.release()).await.unwrap();
        let other = within(SOON, theirs.rw_lock(&name).read()).await.unwrap();
        other.release().await.unwrap();
        drop((downgrade, downgraded));
        idle(&ours).await;
    }
    nothing_left(&server).await;
}

/// One lock is free and the other is held. The call is left alone with the first one, which others get after a lease.
#[tokio::test(flavor = "current_thread")]
async fn a_multi_lock_over_two_servers_holds_members_for_a_lease() {
    let servers = [Server::start(), Server::start()];
    let ours = [
        client(&servers[0].url()).await,
        client(&servers[1].url()).await,
    ];
    let theirs = [
        patient_client(&servers[0].url()).await,
        patient_client(&servers[1].url()).await,
    ];
    let name = unique_name("both");
    let held = [0, 1].map(|at| theirs[at].lock(&name));
    for busy in 0..2 {
        let guard = held[busy].lock().await.unwrap();
        let lock = MultiLock::new(ours.each_ref().map(|client| client.lock(&name))).unwrap();
        let mut call = async move { lock.lock().await }.boxed();
        let waited = tokio::time::timeout(LEASE / 6, &mut call).await;
        assert!(waited.is_err(), "one is held");
        let began = std::time::Instant::now();
        let other = within(SOON, held[1 - busy].lock()).await.unwrap();
        took_less(began, LEASE + SLACK);
        other.release().await.unwrap();
        guard.release().await.unwrap();
        // The call goes on when it is polled again.
        let both = within(SOON, call).await.unwrap();
        assert!(!both.is_lost());
        both.release().await.unwrap();
    }
    for (server, client) in servers.iter().zip(&ours) {
        idle(client).await;
        nothing_left(server).await;
    }
}

/// As above. Another task of the client releases the lock that is not held elsewhere while the call waits.
#[tokio::test(flavor = "current_thread")]
async fn a_multi_lock_over_two_servers_has_nothing_renewed_that_another_task_had() {
    let servers = [Server::start(), Server::start()];
    let ours = [
        client(&servers[0].url()).await,
        client(&servers[1].url()).await,
    ];
    let theirs = [
        patient_client(&servers[0].url()).await,
        patient_client(&servers[1].url()).await,
    ];
    for (kind, is_owned) in [
        (LockKind::Reentrant, false),
        (LockKind::Reentrant, true),
        (LockKind::Fair, false),
        (LockKind::Read, false),
    ] {
        let rival = match kind {
            LockKind::Read => LockKind::Write,
            kind => kind,
        };
        for busy in 0..2 {
            let (name, owner) = (unique_name("both"), Owner::new());
            let held = [0, 1].map(|at| theirs[at].any_lock(rival, &name));
            let mut locks = ours.each_ref().map(|client| client.any_lock(kind, &name));
            if is_owned {
                locks = locks.map(|lock| lock.owner(&owner));
            }
            let guard = held[busy].lock().await.unwrap();
            let first = locks[1 - busy].lock().await.unwrap();
            let lock = MultiLock::new(locks).unwrap();
            let lock = if is_owned { lock.owner(&owner) } else { lock };
            let mut call = async move { lock.lock().await }.boxed();
            let waited = tokio::time::timeout(LEASE / 6, &mut call).await;
            assert!(waited.is_err(), "one is held");
            first.release().await.unwrap();
            assert!(polled(&mut call, 3).await.is_none());
            let began = std::time::Instant::now();
            let other = within(SOON, held[1 - busy].lock()).await.unwrap();
            took_less(began, LEASE + SLACK);
            drop((other, guard));
            let both = within(SOON, call).await.unwrap();
            both.release().await.unwrap();
        }
    }
    for (server, client) in servers.iter().zip(&ours) {
        idle(client).await;
        nothing_left(server).await;
    }
}

/// Each number of polls leaves the call at another step.
#[tokio::test(flavor = "current_thread")]
async fn a_multi_lock_whose_owner_has_a_member_holds_the_others_for_a_lease() {
    let server = Server::start();
    let (ours, theirs) = (
        client(&server.url()).await,
        patient_client(&server.url()).await,
    );
    for polls in 1..=POLLS {
        let (owner, names) = (Owner::new(), ["a", "b"].map(unique_name));
        let own = ours.lock(&names[0]).owner(&owner).lock().await.unwrap();
        let members = names.each_ref().map(|name| Member::from(ours.lock(name)));
        // A lease of its own makes the re-entry ask the server.
        let lock = MultiLock::new(members).unwrap().owner(&owner);
        let lock = lock.lease(LEASE + ANSWER);
        let mut call = async move { lock.lock().await }.boxed();
        let got = polled(&mut call, polls).await;
        if let Some(got) = got {
            got.unwrap().release().await.unwrap();
        }
        let began = std::time::Instant::now();
        let other = within(SOON, theirs.lock(&names[1]).lock()).await.unwrap();
        took_less(began, LEASE + SLACK);
        other.release().await.unwrap();
        own.release().await.unwrap();
        drop(call);
        idle(&ours).await;
    }
    nothing_left(&server).await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_round_of_a_redlock_holds_votes_for_a_lease() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let mut clients = Vec::new();
    for server in &servers {
        clients.push((client(&server.url()).await, client(&server.url()).await));
    }
    let (ours, theirs): (Vec<_>, Vec<_>) = clients.into_iter().unzip();
    let quorum = |clients: &[Client]| {
        let redlock = Redlock::builder(clients.iter().cloned()).persistent_nodes();
        redlock.build().unwrap()
    };
    let (redlock, rival) = (quorum(&ours), quorum(&theirs));
    for polls in 1..=POLLS {
        let name = unique_name("votes");
        let lock = redlock.lock(&name).fenced();
        let mut call = async move { lock.lock().await }.boxed();
        if let Some(got) = polled(&mut call, polls).await {
            got.unwrap().release().await.unwrap();
        }
        let began = std::time::Instant::now();
        let other = within(SOON, rival.lock(&name).lock()).await.unwrap();
        took_less(began, LEASE + SLACK * 2);
        other.release().await.unwrap();
        drop(call);
        for client in &ours {
            idle(client).await;
        }
    }
    for server in &servers {
        nothing_left(server).await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_question_of_a_survey_left_alone_holds_up_no_other() {
    let server = Server::start();
    let ours = patient_client(&server.url()).await;
    let name = unique_name("lock");
    let guard = ours.lock(&name).lock().await.unwrap();
    for polls in 1..=POLLS {
        let survey = Survey::new(&ours);
        let names = [name.as_str()];
        let mut question = survey.named(&names).boxed();
        let _answered = polled(&mut question, polls).await;
        let locks = within(SOON, survey.named(&names)).await.unwrap();
        assert_eq!(locks[0].holders[0].id, guard.holder_id());
    }
    guard.release().await.unwrap();
    eventually(SOON, "nothing is left", async || ours.stats().is_idle()).await;
}
