//! One lock on three servers, explored to its end; and what is found without each rule.

use lockset_model::cases::{REDLOCK_OFF, redlocks};
use lockset_model::explore::{to_the_end, violation};
use lockset_model::progress::Graph;
use lockset_model::redlock::{Action, Phase, Redlock, State};

/// How many states each has, in the order of the table.
const STATES: [usize; 4] = [61_536, 69_634, 26_767, 912_824];

#[test]
fn nothing_fails_with_all_rules() {
    let mut found = [0; STATES.len()];
    for ((name, model), found) in redlocks().into_iter().zip(&mut found) {
        let explored = to_the_end(model).unwrap_or_else(|why| panic!("{name}: {why}"));
        println!("{name}: {explored:?}");
        *found = explored.states;
    }
    assert_eq!(found, STATES);
}

#[test]
fn each_rule_is_needed() {
    for off in REDLOCK_OFF {
        let found = violation(off.model(), off.fails);
        let (states, steps) = found.unwrap_or_else(|| panic!("without {}: nothing", off.rule));
        println!("{}: {states} states, {steps:?}", off.rule);
    }
}

fn is_free(state: &State) -> bool {
    let is_idle = state.clients.iter().all(|(phase, _)| *phase == Phase::Idle);
    is_idle && state.servers.iter().all(|server| server.holder.is_none())
}

/// From every state after restarts, all votes become free without time passing, except the votes of a failed round that
/// is not released: those end with their leases.
#[test]
fn votes_do_not_stay() {
    let at_once = |_: &State, action: &Action| {
        !matches!(action, Action::Restart(_) | Action::Begin(_) | Action::Tick)
    };
    let graph = Graph::of(&Redlock::new(2, 1));
    // A grant for a guard whose lease is over ends with that lease.
    let is_owned = |state: &State| {
        let mut servers = state.servers.iter().filter_map(|server| server.holder);
        servers.all(|(client, round)| {
            let (phase, current) = state.clients[usize::from(client)];
            phase != Phase::Idle && round == current
        })
    };
    assert_eq!(graph.stuck(is_owned, is_free, at_once), None);
    let mut kept = Redlock::new(2, 1);
    kept.rules.round_in_vain_is_released = false;
    assert!(Graph::of(&kept).stuck(|_| true, is_free, at_once).is_some());
}
