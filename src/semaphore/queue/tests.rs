//! Tests the queue with examples, and with all interleavings of four calls.

use std::cell::Cell;
use std::collections::HashSet;

use super::*;

fn at(ms: u64) -> Tick {
    Tick::ZERO.after(Duration::from_millis(ms))
}

fn terms(permits: u32) -> Terms {
    Terms {
        permits,
        declared: 0,
        policy: LeasePolicy::Renewed(Duration::from_secs(30)),
        is_fair: false,
    }
}

fn call(queue: &mut Queue, id: u64, permits: u32, deadline: Tick) -> Vec<Action> {
    let mut out = Vec::new();
    let request = Request {
        id,
        terms: terms(permits),
        deadline,
        give_up: GIVE_UP,
    };
    queue.call(at(1), request, &mut out);
    out
}

fn on(queue: &mut Queue, now: Tick, event: Event) -> Vec<Action> {
    let mut out = Vec::new();
    queue.on(now, event, &mut out);
    out
}

thread_local! {
    /// How many requests were looked at for one whose time is over.
    static LOOKED_AT: Cell<usize> = const { Cell::new(0) };
}

pub(super) fn looked_at(requests: usize) {
    LOOKED_AT.set(LOOKED_AT.get() + requests);
}

const SOON: Duration = Duration::from_millis(100);

const GIVE_UP: Duration = Duration::from_secs(10);

const SILENT: Option<Duration> = Some(GIVE_UP);

/// A queue of waiting requests for these numbers of permits. The server has refused the first.
fn contended(permits: &[u32]) -> Queue {
    let mut queue = Queue::default();
    call(&mut queue, 0, permits[0], Tick::NEVER);
    let retry_in = SOON;
    on(
        &mut queue,
        at(1),
        Event::Refused {
            request: 0,
            retry_in,
        },
    );
    for (id, permits) in (1..).zip(&permits[1..]) {
        assert_eq!(call(&mut queue, id, *permits, Tick::NEVER), []);
    }
    queue
}

#[test]
fn while_the_server_grants_each_request_asks_at_once() {
    let mut queue = Queue::default();
    for id in 0..3 {
        let ask = Action::Ask { request: id };
        assert_eq!(call(&mut queue, id, 1, Tick::NEVER), [ask]);
    }
    for request in 0..3 {
        let given = on(&mut queue, at(2), Event::Granted { request });
        assert_eq!(given, [Action::Give { request }]);
    }
    assert_eq!(queue.wake_at(), None);
}

#[test]
fn a_grant_goes_to_the_first_request_that_fits_whoever_asked() {
    let mut queue = Queue::default();
    for id in 0..3 {
        call(&mut queue, id, 1, Tick::NEVER);
    }
    let given = on(&mut queue, at(2), Event::Granted { request: 2 });
    assert_eq!(given[0], Action::Give { request: 0 });
}

#[test]
fn after_a_refusal_the_first_request_alone_asks() {
    let mut queue = contended(&[2, 1]);
    assert!(queue.is_contended());
    assert_eq!(queue.wake_at(), Some(at(1).after(SOON)));
    assert_eq!(on(&mut queue, at(50), Event::Timer), []);
    let ask = Action::Ask { request: 0 };
    assert_eq!(on(&mut queue, at(101), Event::Timer), [ask]);
}

#[test]
fn a_message_during_an_attempt_leads_to_another_one() {
    let mut queue = contended(&[1]);
    assert_eq!(
        on(&mut queue, at(2), Event::Woken),
        [Action::Ask { request: 0 }]
    );
    assert_eq!(on(&mut queue, at(3), Event::Woken), []);
    let retry_in = SOON;
    let refused = Event::Refused {
        request: 0,
        retry_in,
    };
    let again = on(&mut queue, at(4), refused);
    assert_eq!(again, [Action::Ask { request: 0 }]);
}

#[test]
fn returned_permits_go_to_the_next_request_of_equal_terms_for_a_turn() {
    let mut queue = contended(&[1; 200]);
    for request in 0..u64::from(HANDOFFS_MAX) {
        let given = on(&mut queue, at(1), Event::Returned(terms(1)));
        assert_eq!(given, [Action::Give { request }]);
    }
    assert_eq!(
        on(&mut queue, at(1), Event::Returned(terms(1))),
        [Action::Release],
        "other clients have their turn"
    );
    assert_eq!(queue.wake_at(), Some(at(1).after(STAND_BACK)));
    let mut queue = contended(&[1; 3]);
    let late = at(1).after(TURN_MAX).after(Duration::from_millis(1));
    assert_eq!(
        on(&mut queue, late, Event::Returned(terms(1))),
        [Action::Release]
    );
}

#[test]
fn permits_that_do_not_fit_are_released_and_the_first_request_asks_behind_that() {
    let mut queue = contended(&[2, 1]);
    assert_eq!(
        on(&mut queue, at(2), Event::Returned(terms(1))),
        [Action::Release, Action::Ask { request: 0 }],
        "the large request is not passed"
    );
}

#[test]
fn fair_permits_are_never_handed_off() {
    let mut queue = Queue::default();
    let fair = Terms {
        is_fair: true,
        ..terms(1)
    };
    assert_eq!(
        on(&mut queue, at(1), Event::Returned(fair)),
        [Action::Release]
    );
}

fn call_fair(queue: &mut Queue, id: u64) -> Vec<Action> {
    let mut out = Vec::new();
    let request = Request {
        id,
        terms: Terms {
            policy: LeasePolicy::Renewed(SOON),
            is_fair: true,
            ..terms(1)
        },
        deadline: Tick::NEVER,
        give_up: GIVE_UP,
    };
    queue.call(at(1), request, &mut out);
    out
}

#[test]
fn a_fair_request_that_comes_later_gets_its_place_at_once() {
    let mut queue = Queue::default();
    call_fair(&mut queue, 0);
    let retry_in = SOON;
    let refused = Event::Refused {
        request: 0,
        retry_in,
    };
    assert_eq!(on(&mut queue, at(1), refused), []);
    let asks = [Action::Ask { request: 0 }];
    assert_eq!(call_fair(&mut queue, 1), asks);
    // The attempt under way does not name this request.
    assert_eq!(call_fair(&mut queue, 2), []);
    assert_eq!(on(&mut queue, at(2), refused), asks);
}

/// The server may have granted it and removed its place, and the reply may be under way.
#[test]
fn no_attempt_keeps_the_place_of_a_request_that_asks_itself() {
    let mut queue = Queue::default();
    for id in [1, 2] {
        call_fair(&mut queue, id);
    }
    assert_eq!(queue.unasked().next(), None);
    let retry_in = Duration::from_millis(10);
    on(
        &mut queue,
        at(0),
        Event::Refused {
            request: 2,
            retry_in,
        },
    );
    assert_eq!(queue.unasked().collect::<Vec<_>>(), [2]);
}

#[test]
fn a_fair_grant_goes_to_the_request_that_asked() {
    let mut queue = Queue::default();
    for id in 0..3 {
        call_fair(&mut queue, id);
    }
    let granted = |request| Event::Granted { request };
    let gives = |request| [Action::Give { request }];
    assert_eq!(on(&mut queue, at(2), granted(1)), gives(1));
    on(&mut queue, at(2), Event::Left(2));
    // The permits go to another request if that one is gone.
    assert_eq!(on(&mut queue, at(2), granted(2)), gives(0));
}

#[test]
fn a_grant_that_nobody_wants_is_released() {
    let mut queue = Queue::default();
    call(&mut queue, 0, 1, Tick::NEVER);
    assert_eq!(on(&mut queue, at(2), Event::Left(0)), []);
    assert_eq!(
        on(&mut queue, at(3), Event::Granted { request: 0 }),
        [Action::Release]
    );
}

#[test]
fn a_call_that_does_not_wait_passes_nobody_and_ends_with_its_attempt() {
    let mut queue = Queue::default();
    assert_eq!(
        call(&mut queue, 0, 1, Tick::ZERO),
        [Action::Ask { request: 0 }]
    );
    let retry_in = SOON;
    assert_eq!(
        on(
            &mut queue,
            at(2),
            Event::Refused {
                request: 0,
                retry_in
            }
        ),
        [Action::Refuse { request: 0 }]
    );
    assert!(!queue.is_contended());
    let mut queue = contended(&[2]);
    assert_eq!(
        call(&mut queue, 1, 1, Tick::ZERO),
        [Action::Refuse { request: 1 }]
    );
}

#[test]
fn the_server_is_asked_once_more_at_the_deadline() {
    let mut queue = Queue::default();
    call(&mut queue, 0, 1, at(50));
    let retry_in = SOON;
    on(
        &mut queue,
        at(2),
        Event::Refused {
            request: 0,
            retry_in,
        },
    );
    call(&mut queue, 1, 1, at(50));
    assert_eq!(queue.wake_at(), Some(at(50)));
    assert_eq!(
        on(&mut queue, at(50), Event::Timer),
        [Action::Refuse { request: 1 }, Action::Ask { request: 0 }]
    );
    assert_eq!(
        on(
            &mut queue,
            at(51),
            Event::Refused {
                request: 0,
                retry_in
            }
        ),
        [Action::Refuse { request: 0 }]
    );
    assert_eq!(queue.wake_at(), None);
}

#[test]
fn few_events_look_at_all_that_wait_with_a_deadline() {
    const CALLS: u64 = 10_000;
    let mut queue = contended(&[1]);
    for id in 1..CALLS {
        call(&mut queue, id, 1, at(1_000 + id));
    }
    LOOKED_AT.set(0);
    for time in 0..100 {
        on(&mut queue, at(2 + time), Event::Returned(terms(1)));
        queue.wake_at();
    }
    assert_eq!(LOOKED_AT.get(), 0);
    let over = on(&mut queue, at(2_000), Event::Timer);
    let is_refused = |action: &&Action| matches!(action, Action::Refuse { .. });
    assert!(over.iter().filter(is_refused).count() > 800);
}

#[test]
fn when_the_server_is_silent_all_that_waited_learn_it() {
    let mut queue = contended(&[1, 1]);
    on(&mut queue, at(2), Event::Woken);
    let late = call(&mut queue, 2, 1, Tick::NEVER);
    assert_eq!(late, []);
    let silence = SILENT;
    let failed = on(
        &mut queue,
        at(3),
        Event::Failed {
            request: 0,
            silence,
        },
    );
    assert_eq!(
        failed,
        [
            Action::Fail { request: 0 },
            Action::Fail { request: 1 },
            Action::Ask { request: 2 }
        ]
    );
    let silence = None;
    let one = on(
        &mut queue,
        at(3),
        Event::Failed {
            request: 2,
            silence,
        },
    );
    assert_eq!(one, [Action::Fail { request: 2 }]);
}

#[test]
fn a_request_that_goes_on_for_longer_does_not_fail_with_the_first() {
    let mut queue = contended(&[1, 1]);
    on(&mut queue, at(2), Event::Woken);
    let silence = Some(GIVE_UP / 2);
    assert_eq!(
        on(
            &mut queue,
            at(3),
            Event::Failed {
                request: 0,
                silence
            }
        ),
        [Action::Fail { request: 0 }, Action::Ask { request: 1 }]
    );
}

/// A server with permits and its two clients: one with the queue, and another that takes and returns permits.
#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    queue: Queue,
    now: Tick,
    free: u32,
    /// Taken by guards of this client.
    held: Vec<Terms>,
    /// The requests whose attempts are under way, each with its number of permits.
    asks: Vec<(u64, u32)>,
    /// The requests whose caller is still there.
    open: Vec<u64>,
    calls: u64,
    others: u32,
    /// Whether a message is under way.
    message: bool,
    steps: u32,
}

const PERMITS: u32 = 2;
const CALLS: [(u32, u64); 4] = [(1, u64::MAX), (2, u64::MAX), (1, 5), (1, 0)];
const STEPS_MAX: u32 = 15;

impl World {
    fn new() -> Self {
        Self {
            queue: Queue::default(),
            now: at(1),
            free: PERMITS,
            held: Vec::new(),
            asks: Vec::new(),
            open: Vec::new(),
            calls: 0,
            others: 0,
            message: false,
            steps: 0,
        }
    }

    /// Applies an event, with permits in hand if it carries any.
    fn apply(&mut self, event: Event, mut in_hand: Option<Terms>) {
        let mut out = Vec::new();
        self.queue.on(self.now, event, &mut out);
        self.carry_out(out, &mut in_hand);
        assert_eq!(in_hand, None, "{event:?}: permits in hand go somewhere");
    }

    fn carry_out(&mut self, out: Vec<Action>, in_hand: &mut Option<Terms>) {
        for action in out {
            match action {
                Action::Ask { request } => {
                    assert!(self.open.contains(&request), "{request} waits");
                    let (permits, _) = CALLS[usize::try_from(request).unwrap()];
                    self.asks.push((request, permits));
                }
                Action::Give { request } => {
                    self.close(request);
                    self.held.push(in_hand.take().expect("permits in hand"));
                }
                Action::Release => {
                    self.free += in_hand.take().expect("permits in hand").permits;
                    self.message = true;
                }
                Action::Refuse { request } | Action::Fail { request } => self.close(request),
            }
        }
    }

    fn close(&mut self, request: u64) {
        let at = self.open.iter().position(|open| *open == request);
        self.open.remove(at.expect("a request is answered once"));
    }

    fn next(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut step = |change: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            next.steps += 1;
            change(&mut next);
            all.push(next);
        };
        if let Some((permits, deadline)) = CALLS.get(usize::try_from(self.calls).unwrap()) {
            step(&|next| {
                let mut out = Vec::new();
                let request = Request {
                    id: next.calls,
                    terms: terms(*permits),
                    deadline: if *deadline == u64::MAX {
                        Tick::NEVER
                    } else {
                        at(*deadline)
                    },
                    give_up: GIVE_UP,
                };
                next.open.push(next.calls);
                next.calls += 1;
                next.queue.call(next.now, request, &mut out);
                next.carry_out(out, &mut None);
            });
        }
        if let Some((request, permits)) = self.asks.first().copied() {
            step(&|next| {
                next.asks.remove(0);
                if next.free >= permits {
                    next.free -= permits;
                    next.apply(Event::Granted { request }, Some(terms(permits)));
                } else {
                    let retry_in = SOON;
                    next.apply(Event::Refused { request, retry_in }, None);
                }
            });
            step(&|next| {
                next.asks.remove(0);
                let silence = SILENT;
                next.apply(Event::Failed { request, silence }, None);
            });
        }
        for request in self.open.clone() {
            step(&|next| {
                next.close(request);
                next.apply(Event::Left(request), None);
            });
        }
        if let Some(held) = self.held.first().copied() {
            step(&|next| {
                next.held.remove(0);
                next.apply(Event::Returned(held), Some(held));
            });
        }
        if self.free > 0 && self.others == 0 {
            step(&|next| {
                next.free -= 1;
                next.others += 1;
            });
        }
        if self.others > 0 {
            step(&|next| {
                next.free += 1;
                next.others -= 1;
                next.message = true;
            });
        }
        if self.message {
            step(&|next| {
                next.message = false;
                next.apply(Event::Woken, None);
            });
        }
        if let Some(wake_at) = self.queue.wake_at().filter(|at| *at != Tick::NEVER) {
            step(&|next| {
                next.now = next.now.max(wake_at);
                next.apply(Event::Timer, None);
            });
        }
        all
    }

    fn check(&self) {
        let held: u32 = self.held.iter().map(|terms| terms.permits).sum();
        assert_eq!(
            self.free + held + self.others,
            PERMITS,
            "as many as there are"
        );
        let waits = self.queue.waiting.iter().map(|waiting| waiting.request.id);
        let waits: Vec<u64> = waits.collect();
        assert!(
            waits.iter().all(|request| self.open.contains(request)),
            "no request of a caller that is gone waits"
        );
        assert_eq!(waits.len(), self.open.len(), "each open call waits");
        assert!(waits.is_sorted(), "in the order of arrival");
        let Queue {
            waiting,
            asks,
            earliest,
            ..
        } = &self.queue;
        for waiting in waiting {
            let is_asked = asks.iter().any(|ask| ask.request == waiting.request.id);
            assert_eq!(waiting.is_asked, is_asked, "the flag says what is asked");
        }
        let mut due = waiting.iter().filter(|waiting| waiting.is_due());
        assert!(
            due.all(|waiting| *earliest <= waiting.request.deadline),
            "the queue wakes for each deadline"
        );
        let has_event = self.queue.wake_at().is_some() || !self.asks.is_empty();
        assert!(
            waits.is_empty() || has_event,
            "each wait has a timer or a reply to come"
        );
    }
}

/// Explores, to a depth, all orders of events for four calls beside another client. A call wants all permits.
#[test]
fn whatever_happens_permits_are_neither_lost_nor_doubled_and_no_wait_is_forgotten() {
    let mut seen = HashSet::new();
    let mut open = vec![World::new()];
    while let Some(world) = open.pop() {
        world.check();
        if world.steps == STEPS_MAX {
            continue;
        }
        for next in world.next() {
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    assert!(seen.len() > 100_000, "{} states", seen.len());
}
