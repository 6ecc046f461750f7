//! Tests the local queue against a simple model, and where handed-off shares go.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use futures_util::FutureExt;

use super::place::QueuePlace;
use super::*;
use crate::api::holder::Owner;
use crate::api::options::{LeasePolicy, Options};
use crate::client::Client;
use crate::engine::hint::Hint;
use crate::engine::hold::handoff::LocalHold;
use crate::engine::hold::local::{LocalLock, Locals};
use crate::engine::hold::{Share, ShareLease};
use crate::observe::group::Group;
use crate::reentrant::ReentrantGuard;
use crate::testing::{Answer, Scripted, done, granted};

/// A lock that is used only for its queue.
struct TestQueue(Arc<LocalLock>);

impl Default for TestQueue {
    fn default() -> Self {
        let key: Arc<str> = "x".into();
        Self(Arc::<Locals>::default().get_or_insert("reentrant", &key, &key))
    }
}

impl TestQueue {
    fn with<X>(&self, work: impl FnOnce(&mut Queue) -> X) -> X {
        self.0.lock().with_queue(work)
    }

    fn push(&self, mode: Mode, request: Option<HandoffRequest>) -> QueuePlace<'_> {
        let wants = match mode {
            Mode::Exclusive => Wants::Alone(request),
            Mode::Shared => Wants::Together(None),
        };
        QueuePlace::take(&self.0, wants)
    }

    fn push_joining(&self, terms: u64) -> QueuePlace<'_> {
        QueuePlace::take(&self.0, Wants::Together(Some(class(terms))))
    }

    /// Checks on the heads once. Returns the shares that missing heads had been handed.
    fn check(&self, seen: Mark, now: Tick) -> Option<Vec<Handoff>> {
        self.with(|queue| queue.pass_over_missing(false, seen, now))
    }
}

/// Readers with equal numbers would join each other.
fn class(number: u64) -> ReaderClass {
    ReaderClass {
        lease: Duration::from_secs(number),
        replication: None,
        give_up: Duration::ZERO,
    }
}

/// A hold that counts the shares that were released without having been taken.
#[derive(Debug, Default)]
struct Counted(AtomicUsize);

impl LocalHold for Counted {
    fn give_back(self: Arc<Self>, _: Owner, _: Mode, _: ShareLease) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A share of a hold, with a number.
fn share_of(hold: &Arc<Counted>, number: u64) -> Handoff {
    let lease = ShareLease::renewed(Duration::from_secs(number));
    Handoff::new(Arc::clone(hold) as _, Owner::new(), Mode::Exclusive, lease)
}

fn number(handoff: &Handoff) -> u64 {
    let lease = handoff.lease.renewed;
    lease.expect("a share has a number").as_secs()
}

const LEASE: Duration = Duration::from_secs(30);

/// A server that grants everything.
fn generous() -> Arc<Scripted> {
    Scripted::new(|sent| {
        Answer::Value(match sent.is_release() {
            true => done(),
            false => granted(),
        })
    })
}

impl Hash for Queue {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        // Only the order of the numbers makes a difference.
        let all = || self.places.iter().chain(self.absent.values());
        let rank = |number: u64| all().filter(|other| other.number < number).count();
        for entry in all() {
            (rank(entry.number), entry).hash(hasher);
        }
        let alone = self.alone.or(self.first_alone).map(rank);
        (rank(self.next), self.heads, alone).hash(hasher);
        for (terms, leader) in &self.leaders {
            (terms, rank(*leader)).hash(hasher);
        }
    }
}

impl Hash for Entry {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (&self.wants, self.is_head, &self.stage, self.missed).hash(hasher);
    }
}

/// For tests of a lock without tasks.
impl Queue {
    /// Takes out the share that this place was handed.
    pub(in crate::engine::hold) fn taken(&mut self, number: u64) -> Option<Handoff> {
        self.entry(number).take_handoff()
    }

    /// Leaves this place. Returns the share that it was handed.
    pub(in crate::engine::hold) fn left(&mut self, number: u64) -> Option<Handoff> {
        self.leave(number)?.take_handoff()
    }

    /// The values that waiters were handed.
    pub(in crate::engine::hold) fn handed(&self) -> impl Iterator<Item = &Handoff> {
        self.places.iter().filter_map(|entry| match &entry.stage {
            Stage::Handed(handoff) => Some(handoff),
            _ => None,
        })
    }
}

fn request() -> Option<HandoffRequest> {
    Some(HandoffRequest {
        options: Options::default().into(),
        policy: LeasePolicy::Renewed(LEASE),
    })
}

fn is_head(place: &QueuePlace<'_>) -> bool {
    place.turn().now_or_never().is_some()
}

fn heads(places: &[QueuePlace<'_>]) -> Vec<bool> {
    places.iter().map(is_head).collect()
}

/// Offers a share to the head. Returns it if the head does not take it.
fn offer(queue: &TestQueue, share: Handoff) -> Option<Handoff> {
    let mut share = Some(share);
    let given = queue.with(|queue| queue.hand_off(|_| share.take()));
    assert_eq!(given, share.is_none());
    share
}

/// The number of places that the queue keeps, in turn or passed over.
fn len(queue: &TestQueue) -> usize {
    queue.with(|queue| queue.places.len() + queue.absent.len())
}

/// Checks on the head until it is passed over. Returns the shares that it had been handed.
fn skip(queue: &TestQueue) -> Vec<Handoff> {
    let looks = (0..MISSED_MAX).map(|_| queue.check(Hint::default().mark(), Tick::ZERO));
    looks.flatten().flatten().collect()
}

/// Rests until a hint comes.
fn rest(place: &QueuePlace<'_>) {
    place.rest(Hint::default().mark(), Tick::NEVER);
}

#[test]
fn one_who_wants_it_alone_is_the_head_alone() {
    let queue = TestQueue::default();
    let first = queue.push(Mode::Exclusive, None);
    let mut others: Vec<_> = (0..3).map(|_| queue.push(Mode::Exclusive, None)).collect();
    let reader = queue.push(Mode::Shared, None);
    assert!(is_head(&first));
    assert_eq!(heads(&others), [false; 3]);
    drop(first);
    assert_eq!(heads(&others), [true, false, false]);
    // From the middle: no waiter moves up for that.
    drop(others.remove(1));
    assert_eq!(heads(&others), [true, false]);
    drop(others.remove(0));
    assert_eq!(heads(&others), [true]);
    assert!(!is_head(&reader));
    drop(others);
    assert!(is_head(&reader));
}

#[test]
fn those_who_share_are_heads_together_and_pass_nobody() {
    let queue = TestQueue::default();
    let writer = queue.push(Mode::Exclusive, None);
    let mut readers: Vec<_> = (0..66).map(|_| queue.push(Mode::Shared, None)).collect();
    let second = queue.push(Mode::Exclusive, None);
    let late = queue.push(Mode::Shared, None);
    assert_eq!(heads(&readers), [false; 66]);
    drop(writer);
    assert_eq!(heads(&readers[..64]), [true; 64]);
    assert_eq!(heads(&readers[64..]), [false; 2], "no more at once");
    assert!(queue.with(|queue| queue.has_more()));
    drop(readers.remove(10));
    assert_eq!(heads(&readers), [vec![true; 64], vec![false]].concat());
    readers.truncate(1);
    assert!(!is_head(&second) && !is_head(&late));
    drop(readers);
    assert!(is_head(&second), "with the last of them");
    assert!(!is_head(&late), "a reader waits for the writer before it");
    assert!(queue.with(|queue| queue.has_more()));
    drop(second);
    assert!(is_head(&late));
    assert!(!queue.with(|queue| queue.has_more()));
}

/// The leader of a cohort asks for all of it. Other readers need not wait for the leader.
#[test]
fn of_those_that_would_join_one_is_a_head() {
    let queue = TestQueue::default();
    let reader = queue.push(Mode::Shared, None);
    let mut joining: Vec<_> = (0..3).map(|_| queue.push_joining(1)).collect();
    let late = queue.push(Mode::Shared, None);
    assert!(is_head(&reader));
    assert_eq!(heads(&joining), [true, false, false]);
    assert!(is_head(&late), "beside it");
    assert!(queue.with(|queue| queue.has_more()) && !queue.with(|queue| queue.has_alone()));
    drop(joining.remove(1));
    assert_eq!(heads(&joining), [true, false]);
    drop(joining.remove(0));
    assert_eq!(heads(&joining), [true]);
    // The leader does not come, so the next reader that would join is the head.
    rest(&reader);
    rest(&late);
    let next = queue.push_joining(1);
    assert!(!is_head(&next));
    let mark = Hint::default().mark();
    joining[0].rest(mark, Tick::ZERO);
    assert!(skip(&queue).is_empty());
    assert!(is_head(&next));
    assert!(!is_head(&joining[0]), "one at a time");
    drop(next);
    assert!(is_head(&joining[0]));
}

fn handed(places: &[QueuePlace<'_>]) -> Vec<Option<u64>> {
    let each = places.iter().map(QueuePlace::take_handoff);
    each.map(|handoff| handoff.as_ref().map(number)).collect()
}

/// Offers shares with the following numbers, up to `most`, to waiters with these terms.
fn offers(to: u64, most: u64) -> impl FnMut(&ReaderClass) -> Option<Handoff> {
    let mut next = 0;
    move |terms| {
        let is_for = *terms == class(to) && next < most;
        next += u64::from(is_for);
        is_for.then(|| share_of(&Arc::default(), next))
    }
}

#[test]
fn a_cohort_is_handed_what_there_is_in_its_order() {
    let queue = TestQueue::default();
    assert!(!queue.with(|queue| queue.hand_to_cohort(offers(1, 9))));
    let of = |terms| queue.push_joining(terms);
    let places = [of(1), of(2), of(1), of(1), of(2)];
    let all = || places.iter().map(is_head).collect::<Vec<_>>();
    assert_eq!(
        all(),
        [true, true, false, false, false],
        "one of each cohort"
    );
    let writer = queue.push(Mode::Exclusive, request());
    let behind = queue.push_joining(1);
    assert!(queue.with(|queue| queue.hand_to_cohort(offers(1, 2))));
    assert_eq!(all(), [true, true, true, false, false]);
    let first_two = [Some(1), None, Some(2), None, None];
    assert_eq!(handed(&places), first_two);
    assert!(queue.with(|queue| queue.hand_to_cohort(offers(2, 9))));
    let second = [None, Some(1), None, None, Some(2)];
    assert_eq!(handed(&places), second);
    assert!(
        queue.with(|queue| queue.hand_to_cohort(offers(1, 9))),
        "the head and its followers"
    );
    assert_eq!(handed(&places), [Some(1), None, None, Some(2), None]);
    assert!(
        !is_head(&behind) && behind.take_handoff().is_none(),
        "behind the writer"
    );
    drop(places);
    assert!(writer.turn().now_or_never().is_some());
}

/// A head that asks gets its own answer. Its followers need not wait for that answer.
#[test]
fn who_asks_is_handed_nothing_and_who_follows_is() {
    let queue = TestQueue::default();
    let places = [(); 3].map(|()| queue.push_joining(1));
    assert!(places[0].begin_attempt().is_none());
    assert!(queue.with(|queue| queue.hand_to_cohort(offers(1, 9))));
    assert_eq!(handed(&places), [None, Some(1), Some(2)]);
    assert!(
        !queue.with(|queue| queue.hand_to_cohort(offers(1, 9))),
        "no other waits"
    );
    places[0].rest(Hint::default().mark(), Tick::NEVER);
    assert!(
        queue.with(|queue| queue.hand_to_cohort(offers(1, 9))),
        "it no longer asks"
    );
    assert!(
        !queue.with(|queue| queue.hand_to_cohort(offers(1, 9))),
        "it has something"
    );
    assert_eq!(handed(&places), [Some(1), None, None]);
    let [first, second, third] = places;
    drop(first);
    drop(third);
    assert!(second.turn().now_or_never().is_some());
}

#[test]
fn who_leaves_a_cohort_is_followed_by_the_next() {
    let queue = TestQueue::default();
    let [a, b, c] = [(); 3].map(|()| queue.push_joining(1));
    drop(b);
    assert!(is_head(&a) && !is_head(&c));
    drop(a);
    assert!(is_head(&c));
    let d = queue.push_joining(1);
    assert!(!is_head(&d));
    let look = || {
        let passed_over = queue.check(Hint::default().mark(), Tick::ZERO);
        passed_over.map(|handoffs| handoffs.iter().map(number).collect::<Vec<_>>())
    };
    c.rest(Hint::default().mark(), Tick::ZERO);
    assert_eq!((look(), look()), (Some(vec![]), Some(vec![])));
    assert!(is_head(&d) && !is_head(&c), "it has come back, and follows");
    drop(d);
    assert!(is_head(&c));
    assert!(queue.with(|queue| queue.hand_to_cohort(offers(1, 9))));
    // The head does not come for its share, which goes to others if any wait.
    let _writer = queue.push(Mode::Exclusive, request());
    assert_eq!((look(), look()), (Some(vec![]), Some(vec![1])));
}

/// A writer that was passed over comes back, and is next once the waiters at the head have gone.
#[test]
fn who_comes_back_and_wants_it_alone_is_before_those_who_follow() {
    let queue = TestQueue::default();
    let writer = queue.push(Mode::Exclusive, None);
    let readers = [(); 3].map(|()| queue.push_joining(1));
    for _ in 0..MISSED_MAX {
        let mark = Hint::default().mark();
        queue.check(mark, Tick::ZERO);
    }
    assert!(readers[0].is_head() && !writer.is_head());
    assert!(queue.with(|queue| queue.hand_to_cohort(offers(1, 9))));
    assert_eq!(handed(&readers), [Some(1), None, None]);
    let [first, second, third] = readers;
    drop(first);
    assert!(writer.is_head() && !second.is_head());
    drop(writer);
    assert!(second.is_head() && !third.is_head());
}

#[test]
fn who_is_behind_one_that_wants_it_alone_knows() {
    let queue = TestQueue::default();
    let before = queue.push_joining(1);
    assert!(!queue.with(|queue| queue.has_alone()));
    let writers = [(); 2].map(|()| queue.push(Mode::Exclusive, None));
    let behind = queue.push_joining(1);
    let last = queue.push(Mode::Exclusive, None);
    assert!(
        queue.with(|queue| queue.has_alone())
            && !before.is_behind_alone()
            && behind.is_behind_alone()
    );
    let [first, second] = writers;
    drop(second);
    assert!(behind.is_behind_alone());
    drop(first);
    assert!(!behind.is_behind_alone() && queue.with(|queue| queue.has_alone()));
    // A waiter that was passed over delays no other until it comes back.
    drop((before, behind));
    assert!(is_head(&last));
    let behind = queue.push_joining(1);
    assert!(behind.is_behind_alone());
    last.rest(Hint::default().mark(), Tick::ZERO);
    assert!(skip(&queue).is_empty());
    assert!(
        !behind.is_behind_alone() && is_head(&behind) && !queue.with(|queue| queue.has_alone())
    );
    assert!(!is_head(&last));
    assert!(queue.with(|queue| queue.has_alone()) && behind.is_behind_alone());
    drop(last);
    assert!(!queue.with(|queue| queue.has_alone()));
    assert_eq!(len(&queue), 1);
}

/// One waiter stays at the head for long while others come and go behind it.
#[test]
fn waiters_that_gave_up_leave_nothing_behind() {
    let queue = TestQueue::default();
    let first = queue.push(Mode::Exclusive, None);
    let mut last = queue.push(Mode::Exclusive, None);
    for _ in 0..10_000 {
        // They overlap, so that there is always a last waiter.
        last = queue.push(Mode::Exclusive, None);
    }
    assert_eq!(len(&queue), 2);
    assert!(queue.with(|queue| queue.has_more()));
    drop(last);
    assert!(
        !queue.with(|queue| queue.has_more()),
        "none waits behind the head"
    );
    drop(first);
    assert_eq!(len(&queue), 0);
}

#[tokio::test(start_paused = true)]
async fn the_next_is_woken_whoever_leaves() {
    let queue = TestQueue::default();
    let places: Vec<_> = (0..4).map(|_| queue.push(Mode::Exclusive, None)).collect();
    let [first, second, third, fourth] = <[_; 4]>::try_from(places).unwrap();
    tokio::join!(
        async {
            first.turn().await;
            tokio::task::yield_now().await;
            drop(first);
        },
        async {
            third.turn().await;
            drop(third);
        },
        async {
            fourth.turn().await;
            drop(fourth);
        },
        // Leaves before it has been polled.
        async { drop(second) },
    );
    assert_eq!(len(&queue), 0);
}

/// A head that does not come is passed over by all behind it, and is next again when it comes.
#[test]
fn one_that_does_not_come_is_passed_over() {
    let queue = TestQueue::default();
    let places: Vec<_> = (0..4).map(|_| queue.push(Mode::Exclusive, None)).collect();
    let [first, second, third, fourth] = <[_; 4]>::try_from(places).unwrap();
    assert!(queue.check(Hint::default().mark(), Tick::ZERO).is_some());
    assert!(is_head(&first), "it has come");
    assert!(queue.check(Hint::default().mark(), Tick::ZERO).is_some());
    assert!(!is_head(&second), "once is not enough");
    assert!(queue.check(Hint::default().mark(), Tick::ZERO).is_some());
    assert!(is_head(&second));
    assert_eq!(queue.with(|queue| queue.absent.len()), 1);
    assert!(!is_head(&first), "another one is there by now");
    assert!(queue.with(|queue| queue.has_more()));
    drop(second);
    assert!(is_head(&first) && !is_head(&third), "it has kept its claim");
    skip(&queue);
    skip(&queue);
    skip(&queue);
    assert_eq!(
        queue.with(|queue| queue.absent.len()),
        2,
        "no waiter is behind the last"
    );
    assert!(!queue.with(|queue| queue.has_more()) && is_head(&fourth));
    drop((first, third, fourth));
    assert_eq!(len(&queue), 0);
}

/// A resting head counts as missing only after a hint, or after its time.
#[test]
fn one_that_need_not_come_is_let_be() {
    let (queue, hint) = (TestQueue::default(), Hint::default());
    let first = queue.push(Mode::Exclusive, None);
    let second = queue.push(Mode::Exclusive, None);
    let [soon, late] = [1, 2].map(|secs| Tick::ZERO.after(Duration::from_secs(secs)));
    for is_told in [true, false] {
        first.rest(hint.mark(), late);
        for _ in 0..10 {
            assert!(queue.check(hint.mark(), soon).is_some());
        }
        assert!(!second.is_head());
        if is_told {
            hint.notify();
        }
        let now = if is_told { soon } else { late };
        assert!(queue.check(hint.mark(), now).is_some());
        assert!(!second.is_head());
        assert!(queue.check(hint.mark(), now).is_some());
        assert!(second.is_head());
        assert!(!first.is_head());
        assert!(skip(&queue).is_empty());
        assert!(first.is_head() && !second.is_head());
    }
}

#[test]
fn those_behind_are_looked_after_once() {
    let queue = TestQueue::default();
    let first = queue.push(Mode::Exclusive, None);
    assert!(!queue.with(|queue| queue.begin_watch(false)), "none waits");
    let second = queue.push(Mode::Exclusive, None);
    assert!(
        queue.with(|queue| queue.begin_watch(false))
            && !queue.with(|queue| queue.begin_watch(false))
    );
    drop(first);
    assert!(queue.check(Hint::default().mark(), Tick::ZERO).is_none());
    let third = queue.push(Mode::Exclusive, None);
    assert!(
        queue.with(|queue| queue.begin_watch(false)),
        "the previous watch has ended"
    );
    drop((second, third));
}

#[test]
fn a_place_counts_those_who_came_before_and_are_there() {
    let queue = TestQueue::default();
    let mut places: Vec<_> = (0..4).map(|_| queue.push(Mode::Exclusive, None)).collect();
    let numbers: Vec<_> = places.iter().map(QueuePlace::number).collect();
    let all = || {
        numbers
            .iter()
            .map(|number| queue.with(|queue| queue.place_of(*number)))
    };
    let all = || all().collect::<Vec<_>>();
    assert_eq!(all(), [Some(1), Some(2), Some(3), Some(4)]);
    // A waiter that was passed over is next when it comes back.
    assert!(skip(&queue).is_empty());
    assert!(is_head(&places[1]));
    assert_eq!(all(), [Some(1), Some(2), Some(3), Some(4)]);
    drop(places.remove(2));
    assert_eq!(all(), [Some(1), Some(2), None, Some(3)]);
    drop(places.remove(0));
    assert_eq!(all(), [None, Some(1), None, Some(2)]);
    drop(places);
    assert_eq!(all(), [None; 4]);
    assert_eq!(queue.with(|queue| queue.place_of(99)), None);
}

#[test]
fn a_closed_line_lets_all_go_on() {
    let queue = TestQueue::default();
    let first = queue.push(Mode::Exclusive, None);
    let second = queue.push(Mode::Exclusive, None);
    assert!(second.turn().now_or_never().is_none());
    queue.with(|queue| queue.close());
    assert!(second.turn().now_or_never().is_some());
    drop((first, second));
}

/// A guard of a lock, and the local state of that lock.
async fn held(client: &Client) -> (Arc<LocalLock>, ReentrantGuard) {
    let guard = client.lock("x").lock().await.unwrap();
    let key: Arc<str> = "x".into();
    let locals = &client.core().locals;
    (locals.get_or_insert("reentrant", &key, &key), guard)
}

#[tokio::test(start_paused = true)]
async fn a_share_goes_on_with_the_place_it_was_given_to() {
    let server = generous();
    let client = Client::over(&server, LEASE);
    let (local, guard) = held(&client).await;
    let holder = guard.owner().clone();
    let mut places: Vec<_> = (0..4)
        .map(|_| QueuePlace::take(&local, Wants::Alone(request())))
        .collect();
    drop(guard);
    let has = |place: &QueuePlace<'_>| place.handed_off().now_or_never().is_some();
    let all = |places: &[QueuePlace<'_>]| places.iter().map(has).collect::<Vec<_>>();
    assert_eq!(all(&places), [true, false, false, false]);
    // The task of the first place never took its share.
    drop(places.remove(0));
    assert_eq!(all(&places), [true, false, false]);
    // From the middle.
    drop(places.remove(1));
    assert_eq!(all(&places), [true, false]);
    let handoff = places[0].take_handoff().expect("it was given");
    let share = Share::handed_off(handoff, Group::default()).expect("a share");
    assert!(!share.is_lost());
    assert_ne!(*share.owner(), holder);
    assert!(places[0].take_handoff().is_none(), "once");
    // The task has taken its share, and leaves the queue.
    drop(places.remove(0));
    assert!(!has(&places[0]));
    drop(share);
    assert!(has(&places[0]));
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(server.sent().len(), 1, "all of that without the server");
    drop(places);
    tokio::time::sleep(Duration::from_millis(1)).await;
    let sent = server.sent();
    assert_eq!(sent.len(), 2, "with no waiter left it is released");
    assert!(sent[1].is_release());
    assert_eq!(client.stats().holds, 0);
}

#[test]
fn nothing_is_given_to_who_asks_or_has_it_or_wants_nothing() {
    let (queue, hold) = (TestQueue::default(), Arc::default());
    let share = share_of(&hold, 1);
    let share = offer(&queue, share).expect("the queue is empty");
    let several = queue.push(Mode::Exclusive, None);
    let place = queue.push(Mode::Exclusive, request());
    let share = offer(&queue, share).expect("the head takes nothing over");
    drop(several);
    assert!(place.begin_attempt().is_none());
    let share = offer(&queue, share).expect("it asks the server");
    rest(&place);
    assert!(offer(&queue, share).is_none());
    let other = share_of(&hold, 2);
    let other = offer(&queue, other).expect("it has one");
    let given = place.begin_attempt().expect("it has it, and does not ask");
    let other = offer(&queue, other);
    assert!(other.is_none(), "it was not asking");
    drop(place);
    let share = given;
    let reader = queue.push(Mode::Shared, request());
    assert!(offer(&queue, share).is_some(), "others may be there too");
    drop(reader);
}

/// A place in the model. The order of the places decides on their turns.
struct Seen<'a> {
    place: QueuePlace<'a>,
    mode: Mode,
    has_wish: bool,
    is_head: bool,
    is_asking: bool,
    has_given: bool,
    rests: bool,
    is_absent: bool,
}

/// Moves places to the head, from the front. A place fits if it may share the lock with all places there.
fn promote(seen: &mut [Seen<'_>]) {
    for at in 0..seen.len() {
        if seen[at].is_head || seen[at].is_absent {
            continue;
        }
        let heads = seen.iter().filter(|place| place.is_head);
        let (count, alone) = heads.fold((0, false), |(count, alone), place| {
            (count + 1, alone || place.mode == Mode::Exclusive)
        });
        let fits = match seen[at].mode {
            Mode::Exclusive => count == 0,
            Mode::Shared => !alone && count < HEADS_MAX,
        };
        if !fits {
            return;
        }
        seen[at].is_head = true;
    }
}

/// Whether any place waits behind the head. A place that was passed over does not count.
fn has_more(seen: &[Seen<'_>]) -> bool {
    seen.iter().any(|place| !place.is_head && !place.is_absent)
}

/// Passes over the heads that should have come and did not, if any place waits behind them.
fn pass_over_in_model(seen: &mut [Seen<'_>]) {
    if !has_more(seen) {
        return;
    }
    for place in seen.iter_mut().filter(|place| place.is_head) {
        if !place.rests {
            (place.is_head, place.is_asking, place.has_given) = (false, false, false);
            place.is_absent = true;
        }
    }
}

#[test]
fn it_does_what_a_simple_model_does() {
    const STEPS: usize = 100_000;
    let (queue, hold) = (TestQueue::default(), Arc::default());
    let mut spare: Vec<_> = (0..4).map(|nth| share_of(&hold, nth)).collect();
    let mut random = fastrand::Rng::with_seed(7);
    let mut seen: Vec<Seen<'_>> = Vec::new();
    let (mut given, mut most, mut returned) = (0, 0, 0);
    for step in 0..STEPS {
        // Crowds come and go.
        let target = [3, 90, 10][step / 5_000 % 3];
        if seen.is_empty() || random.usize(0..=2 * target) >= seen.len() {
            let mode = match random.u8(0..3) {
                0 => Mode::Exclusive,
                _ if step / 1_000 % 2 == 0 => Mode::Exclusive,
                _ => Mode::Shared,
            };
            let has_wish = random.bool();
            seen.push(Seen {
                place: queue.push(mode, if has_wish { request() } else { None }),
                mode,
                has_wish,
                is_head: false,
                is_asking: false,
                has_given: false,
                rests: false,
                is_absent: false,
            });
        } else {
            // Mostly from the front, like waiters that get the lock.
            let at = if random.bool() {
                0
            } else {
                random.usize(0..seen.len())
            };
            let left = seen.remove(at);
            if let Some(given) = left.place.take_handoff() {
                assert!(left.has_given);
                spare.push(given);
            } else {
                assert!(!left.has_given);
            }
        }
        promote(&mut seen);
        let at = random.usize(0..=seen.len());
        if let Some(one) = seen.get_mut(at) {
            match random.u8(0..3) {
                0 => {
                    let taken = one.place.take_handoff();
                    assert_eq!(taken.is_some(), one.has_given);
                    one.has_given = false;
                    spare.extend(taken);
                }
                1 => {
                    let taken = one.place.begin_attempt();
                    assert_eq!(taken.is_some(), one.has_given);
                    one.is_asking = !one.has_given;
                    (one.has_given, one.rests) = (false, false);
                    spare.extend(taken);
                }
                _ => {
                    rest(&one.place);
                    (one.is_asking, one.rests) = (false, !one.has_given);
                }
            }
        }
        if random.u8(0..8) == 0 {
            spare.extend(skip(&queue));
            pass_over_in_model(&mut seen);
            promote(&mut seen);
        }
        let head = seen.iter_mut().find(|place| place.is_head);
        let head = head.filter(|head| {
            head.mode == Mode::Exclusive && head.has_wish && !head.is_asking && !head.has_given
        });
        let takes = head.is_some();
        let left = offer(&queue, spare.pop().expect("few are given at once"));
        assert_eq!(left.is_none(), takes, "step {step}");
        if let Some(head) = head {
            // To take its share, the head has to come.
            (head.has_given, head.rests) = (true, false);
            given += 1;
        }
        spare.extend(left);
        assert_eq!(queue.with(|queue| queue.has_more()), has_more(&seen));
        most = most.max(seen.len());
        if step % 100 == 0 || (seen.len() < 8 && random.u8(0..4) == 0) {
            for at in 0..seen.len() {
                returned += u32::from(seen[at].is_absent);
                (seen[at].is_absent, seen[at].rests) = (false, false);
                promote(&mut seen);
                assert_eq!(is_head(&seen[at].place), seen[at].is_head, "step {step}");
            }
            assert_eq!(len(&queue), seen.len());
        }
    }
    assert!(given > 1_000 && most > 100, "{given} {most}");
    assert!(returned > 1_000, "{returned}");
    drop(seen);
    assert_eq!(len(&queue), 0);
    drop(spare);
    assert_eq!(hold.0.load(Ordering::Relaxed), 4, "no share was lost");
}
