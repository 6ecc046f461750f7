//! Exploring a model: to its end, or to the first violation.

use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model};
use std::hash::Hash;

/// The result of a complete exploration.
#[derive(Clone, Debug)]
pub struct Explored {
    /// How many different states there are.
    pub states: usize,
    /// How many steps lead to them.
    pub steps: usize,
    /// How many steps the farthest is away.
    pub depth: usize,
    /// How long it took.
    pub took: Duration,
}

/// Explores all states.
///
/// # Errors
///
/// Returns a failed property with the steps to it, or a required state that was never reached.
pub fn to_the_end<M>(model: M) -> Result<Explored, String>
where
    M: Model + Clone + Send + Sync + 'static,
    M::State: Clone + std::fmt::Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + std::fmt::Debug + PartialEq + Send + Sync + 'static,
{
    let began = Instant::now();
    let checker = model.checker().threads(1).spawn_bfs().join();
    for property in checker.model().properties() {
        let found = checker.discovery(property.name);
        match (property.expectation, found) {
            (stateright::Expectation::Sometimes, None) => {
                return Err(format!("never: {}", property.name));
            }
            (stateright::Expectation::Sometimes, Some(_)) | (_, None) => {}
            (_, Some(path)) => {
                return Err(format!(
                    "not so: {}: {:?}",
                    property.name,
                    path.into_actions()
                ));
            }
        }
    }
    Ok(Explored {
        states: checker.unique_state_count(),
        steps: checker.state_count(),
        depth: checker.max_depth(),
        took: began.elapsed(),
    })
}

/// Looks for a violation of this property, and says how many states it took and the shortest steps to it.
pub fn violation<M>(model: M, property: &'static str) -> Option<(usize, Vec<M::Action>)>
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + std::fmt::Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + std::fmt::Debug + PartialEq + Send + Sync + 'static,
{
    let wanted = HasDiscoveries::AnyOf([property].into());
    let checker = model
        .checker()
        .threads(1)
        .finish_when(wanted)
        .spawn_bfs()
        .join();
    let path = checker.discovery(property)?;
    Some((checker.unique_state_count(), path.into_actions()))
}
