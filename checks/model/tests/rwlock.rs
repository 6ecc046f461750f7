//! One read-write lock on one server, explored to its end; and what is found without each rule.

use lockset_model::cases::{RW_LOCKS, RW_OFF};
use lockset_model::explore::{to_the_end, violation};
use lockset_model::progress::Graph;
use lockset_model::rwlock::{Action, Bounds, Mode, Phase, RwLock, State};

/// How many states each has, in the order of the table: a model that grows or shrinks has changed.
const STATES: [usize; 2] = [85_335, 142_875];

#[test]
fn nothing_fails_with_all_rules() {
    let mut found = [0; RW_LOCKS.len()];
    for ((name, bounds), found) in RW_LOCKS.into_iter().zip(&mut found) {
        let explored =
            to_the_end(RwLock::new(bounds)).unwrap_or_else(|why| panic!("{name}: {why}"));
        println!("{name}: {explored:?}");
        *found = explored.states;
    }
    assert_eq!(found, STATES);
}

#[test]
fn each_rule_is_needed() {
    for off in RW_OFF {
        let found = violation(off.model(), off.fails);
        let (states, steps) = found.unwrap_or_else(|| panic!("without {}: nothing", off.rule));
        println!("{}: {states} states, {steps:?}", off.rule);
    }
}

/// From every state after the end of a process: without another end, the lock becomes free, and each client that wants
/// it gets it.
#[test]
fn from_everywhere_it_goes_on() {
    let graph = Graph::of(&RwLock::new(Bounds {
        faults: 1,
        ..Bounds::SMALL
    }));
    let finishes =
        |_: &State, action: &Action| !matches!(action, Action::Crash(_) | Action::Ask(..));
    let is_quiet = |state: &State| {
        let is_over = |phase: &Phase| matches!(phase, Phase::Idle | Phase::Dead { .. });
        let server = &state.server;
        let is_free = server.writer.is_none() && server.readers.is_empty();
        is_free
            && state
                .clients
                .iter()
                .all(|client| is_over(&client.phase) && client.is_silent())
    };
    assert_eq!(graph.stuck(|_| true, is_quiet, finishes), None);
    let holds = |state: &State| state.clients[0].valid().is_some();
    let wants = |state: &State| {
        matches!(
            state.clients[0].phase,
            Phase::Asking { age: 0, .. } | Phase::Waiting { .. }
        )
    };
    let stays =
        |state: &State, action: &Action| finishes(state, action) && *action != Action::Abandon(0);
    assert_eq!(graph.stuck(wants, holds, stays), None);
    println!("{} states go on", graph.len());
}

/// Whether the last client can wait for ever, while time passes and the others come and go.
fn starves(last: Mode, turn: impl Fn(&mut lockset_model::rwlock::Rules)) -> bool {
    let mut model = RwLock::new(Bounds::endless(last));
    turn(&mut model.rules);
    let graph = Graph::of(&model);
    println!("{} states", graph.len());
    let waits = |state: &State| {
        matches!(
            state.clients[2].phase,
            Phase::Asking { .. } | Phase::Waiting { .. }
        )
    };
    let is_time = |action: &Action| *action == Action::Tick;
    graph.lasso(waits, |_| true, is_time).is_some()
}

#[test]
fn no_writer_waits_for_ever_while_readers_come_and_go() {
    assert!(!starves(Mode::Write, |_| {}));
    assert!(starves(Mode::Write, |rules| rules.writer_goes_first = false));
}

#[test]
fn no_reader_waits_for_ever_while_writers_come_and_go() {
    assert!(!starves(Mode::Read, |_| {}));
    assert!(starves(Mode::Read, |rules| rules
        .readers_that_waited_go_first =
        false));
}
