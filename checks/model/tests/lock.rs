//! One lock on one server, explored to its end; and what is found without each rule.

use lockset_model::cases::{LOCKS, OFF, OFF_WITH_HANDOFFS};
use lockset_model::explore::{to_the_end, violation};
use lockset_model::lock::{Action, Bounds, Client, Lock, Phase, State};
use lockset_model::progress::Graph;

/// How many states each has, in the order of the table: a model that grows or shrinks has changed.
const STATES: [usize; 7] = [451_090, 70_640, 183_951, 83_306, 56_555, 29_267, 68_861];

#[test]
fn nothing_fails_with_all_rules() {
    let mut found = [0; LOCKS.len()];
    for ((name, bounds), found) in LOCKS.into_iter().zip(&mut found) {
        let explored = to_the_end(Lock::new(bounds)).unwrap_or_else(|why| panic!("{name}: {why}"));
        println!("{name}: {explored:?}");
        *found = explored.states;
    }
    assert_eq!(found, STATES);
}

#[test]
fn each_rule_is_needed() {
    for off in OFF.into_iter().chain(OFF_WITH_HANDOFFS) {
        let found = violation(off.model(), off.fails);
        let (states, steps) = found.unwrap_or_else(|| panic!("without {}: nothing", off.rule));
        println!("{}: {states} states, {steps:?}", off.rule);
    }
}

fn finishes(state: &State, action: &Action) -> bool {
    !action.is_fault() && !action.begins(state)
}

fn is_quiet(state: &State) -> bool {
    let is_over = |client: &Client| client.is_done() || client.phase == Phase::Dead;
    state.server.holder.is_none() && state.clients.iter().all(is_over)
}

fn holds(state: &State) -> bool {
    state.clients[0].is_valid()
}

/// An attempt older than its lease gets a useless grant.
fn wants(state: &State) -> bool {
    matches!(
        state.clients[0].phase,
        Phase::Asking { age: 0 } | Phase::Waiting { .. }
    )
}

/// From every state after faults: without another fault, the lock becomes free, and each client that wants it gets it.
#[test]
fn from_everywhere_it_goes_on() {
    let small = Bounds {
        attempts: 2,
        ..Bounds::SMALL
    };
    for bounds in [
        small,
        Bounds {
            is_fair: true,
            ..small
        },
    ] {
        let graph = Graph::of(&Lock::new(bounds));
        assert_eq!(graph.stuck(|_| true, is_quiet, finishes), None);
        let no_fault = |state: &State, action: &Action| {
            finishes(state, action) && *action != Action::Abandon(0)
        };
        assert_eq!(graph.stuck(wants, holds, no_fault), None);
        println!("{} states go on", graph.len());
    }
}

/// Without a lease, what a dead client had is never free.
#[test]
fn without_a_lease_it_does_not_go_on() {
    let mut model = Lock::new(Bounds {
        attempts: 2,
        ..Bounds::SMALL
    });
    model.rules.hold_has_lease = false;
    let graph = Graph::of(&model);
    assert!(graph.stuck(|_| true, is_quiet, finishes).is_some());
}

/// Tasks that work for a tick each, and a client elsewhere that asks the server.
fn busy(handoffs_have_bound: bool) -> Lock {
    let mut model = Lock::new(Bounds {
        attempts: 2,
        faults: 0,
        handoffs: 2,
        is_fenced: false,
        work: Some(1),
        ..Bounds::SMALL
    });
    model.rules.handoffs_have_bound = handoffs_have_bound;
    model
}

/// With every sequence of hand-offs between tasks of one client, the lock becomes free at the server again and again.
#[test]
fn no_run_of_hand_offs_lasts_for_ever() {
    let kept = |state: &State| state.server.holder.is_some();
    let no_fault = |action: &Action| !action.is_fault();
    let is_time = |action: &Action| *action == Action::Tick;
    let graph = Graph::of(&busy(true));
    assert_eq!(graph.lasso(kept, no_fault, is_time), None);
    let unbounded = Graph::of(&busy(false));
    assert!(unbounded.lasso(kept, no_fault, is_time).is_some());
}
