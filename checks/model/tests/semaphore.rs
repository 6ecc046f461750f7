//! The permits of one semaphore on one server, explored to their end; and what is found without each rule.

use lockset_model::explore::{to_the_end, violation};
use lockset_model::progress::Graph;
use lockset_model::semaphore::cases::{CASES, OFF};
use lockset_model::semaphore::{Action, Bounds, Phase, Rules, Semaphore, State};

/// How many states each has, in the order of the table: a model that grows or shrinks has changed.
const STATES: [usize; CASES.len()] = [10_645, 7_106, 53_311, 26_919, 17_698];

#[test]
fn nothing_fails_with_all_rules() {
    let mut found = [0; CASES.len()];
    for ((name, bounds), found) in CASES.into_iter().zip(&mut found) {
        let explored =
            to_the_end(Semaphore::new(bounds)).unwrap_or_else(|why| panic!("{name}: {why}"));
        println!("{name}: {explored:?}");
        *found = explored.states;
    }
    assert_eq!(found, STATES);
}

#[test]
fn each_rule_is_needed() {
    for off in OFF {
        let found = violation(off.model(), off.fails);
        let (states, steps) = found.unwrap_or_else(|| panic!("without {}: nothing", off.rule));
        println!("{}: {states} states, {steps:?}", off.rule);
    }
}

fn graph(bounds: Bounds, turn: fn(&mut Rules)) -> Graph<Semaphore> {
    let mut model = Semaphore::new(bounds);
    turn(&mut model.rules);
    let graph = Graph::of(&model);
    println!("{} states", graph.len());
    graph
}

const ONE_FAULT: Bounds = Bounds {
    calls: 2,
    faults: 1,
    ..Bounds::SMALL
};

/// Whether a waiter can get stuck, without another fault.
fn is_stuck(bounds: Bounds, turn: fn(&mut Rules)) -> bool {
    let goes_on = |_: &State, action: &Action| {
        !action.is_fault() && !matches!(action, Action::Call(_) | Action::Abandon(1))
    };
    let wants = |state: &State| state.clients[1].wants();
    let has = |state: &State| matches!(state.clients[1].phase, Phase::Held(_));
    graph(bounds, turn).stuck(wants, has, goes_on).is_some()
}

/// From every state, also after a fault, a waiter for all permits gets them.
#[test]
fn from_everywhere_it_goes_on() {
    let fair = Bounds {
        is_fair: true,
        ..ONE_FAULT
    };
    assert!(!is_stuck(ONE_FAULT, |_| {}));
    assert!(!is_stuck(fair, |_| {}));
    assert!(is_stuck(ONE_FAULT, |rules| rules.waits_have_timers = false));
    assert!(is_stuck(ONE_FAULT, |rules| rules.ended_are_given_back = false));
    let dead = Bounds { calls: 3, ..fair };
    assert!(is_stuck(dead, |rules| rules.places_end = false));
}

/// Whether others can take permits again and again while the last client waits for all of them: with a live place in
/// the queue, if there is one.
fn starves(is_fair: bool, turn: fn(&mut Rules)) -> bool {
    let bounds = Bounds {
        sizes: &[1, 1, 2],
        is_fair,
        is_endless: true,
        ..Bounds::SMALL
    };
    let waits = |state: &State| {
        let mut places = state.server.queue.iter();
        let has_place = places.any(|place| place.client == 2 && place.alive > 0);
        state.clients[2].wants() && (has_place || !is_fair)
    };
    let releases = |action: &Action| matches!(action, Action::Release(_));
    graph(bounds, turn)
        .lasso(waits, |_| true, releases)
        .is_some()
}

#[test]
fn no_big_request_waits_for_ever_in_a_queue() {
    assert!(!starves(true, |_| {}));
    assert!(starves(true, |rules| rules.free_permits_go_to_head = false));
    assert!(starves(false, |_| {}));
}
