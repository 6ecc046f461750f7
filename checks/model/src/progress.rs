//! Whether a system can always go on.
//!
//! stateright checks what `eventually` happens only along paths that do not come back to a state they were in. So
//! this looks at the whole graph. [`Graph::stuck`] is a check of reachability: from each state that can be reached,
//! faults included, something good can be reached by steps without a fault. [`Graph::lasso`] is one of fairness: no
//! run without a fault goes round for ever, time passing, in states where something is withheld.

use std::collections::HashMap;
use std::hash::Hash;

use stateright::Model;

/// All states of a model and the steps between them.
#[derive(Debug)]
pub struct Graph<M: Model> {
    states: Vec<M::State>,
    /// From, with what, to.
    steps: Vec<(u32, M::Action, u32)>,
}

impl<M> Graph<M>
where
    M: Model,
    M::State: Clone + Eq + Hash,
    M::Action: Copy,
{
    /// Explores a model to its end.
    pub fn of(model: &M) -> Self {
        let mut states = model.init_states();
        let mut numbers: HashMap<M::State, u32> = states.iter().cloned().zip(0..).collect();
        let mut steps = Vec::new();
        let mut at = 0;
        let mut actions = Vec::new();
        while at < states.len() {
            let state = states[at].clone();
            model.actions(&state, &mut actions);
            for action in actions.drain(..) {
                let Some(next) = model.next_state(&state, action) else {
                    continue;
                };
                let number = *numbers.entry(next).or_insert_with_key(|next| {
                    states.push(next.clone());
                    u32::try_from(states.len() - 1).expect("fewer than 2^32 states")
                });
                steps.push((at as u32, action, number));
            }
            at += 1;
        }
        Self { states, steps }
    }

    /// How many states there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// A state where something is wanted and nothing good can be reached by steps that are allowed.
    pub fn stuck(
        &self,
        is_wanted: impl Fn(&M::State) -> bool,
        is_good: impl Fn(&M::State) -> bool,
        is_allowed: impl Fn(&M::State, &M::Action) -> bool,
    ) -> Option<&M::State> {
        let allowed = |(from, action, _): &&(u32, M::Action, u32)| {
            is_allowed(&self.states[*from as usize], action)
        };
        let allowed = self.steps.iter().filter(allowed);
        let back = Edges::new(self.states.len(), allowed.map(|(from, _, to)| (*to, *from)));
        let good = (0..).zip(&self.states).filter(|(_, state)| is_good(state));
        let mut open: Vec<u32> = good.map(|(number, _)| number).collect();
        let mut is_reached = vec![false; self.states.len()];
        while let Some(number) = open.pop() {
            if !std::mem::replace(&mut is_reached[number as usize], true) {
                open.extend(back.of(number));
            }
        }
        let mut states = self.states.iter().zip(is_reached);
        let stuck = states.find(|(state, is_reached)| !is_reached && is_wanted(state));
        stuck.map(|(state, _)| state)
    }

    /// A step of time that can come again and again, all states in between withholding something.
    pub fn lasso(
        &self,
        is_withheld: impl Fn(&M::State) -> bool,
        is_allowed: impl Fn(&M::Action) -> bool,
        is_time: impl Fn(&M::Action) -> bool,
    ) -> Option<&M::State> {
        let inside = |(from, action, to): &&(u32, M::Action, u32)| {
            let is_withheld = |number: &u32| is_withheld(&self.states[*number as usize]);
            is_allowed(action) && is_withheld(from) && is_withheld(to)
        };
        let steps: Vec<_> = self.steps.iter().filter(inside).collect();
        let count = self.states.len();
        let onward = Edges::new(count, steps.iter().map(|(from, _, to)| (*from, *to)));
        let back = Edges::new(count, steps.iter().map(|(from, _, to)| (*to, *from)));
        let component = components(&onward, &back);
        let is_cycle = |(from, action, to): &&&(u32, M::Action, u32)| {
            is_time(action) && component[*from as usize] == component[*to as usize]
        };
        let found = steps.iter().find(is_cycle);
        found.map(|(from, _, _)| &self.states[*from as usize])
    }
}

/// The steps from each state, one after the other.
struct Edges {
    starts: Vec<u32>,
    ends: Vec<u32>,
}

impl Edges {
    fn new(count: usize, edges: impl Iterator<Item = (u32, u32)> + Clone) -> Self {
        let mut starts = vec![0_u32; count + 1];
        for (from, _) in edges.clone() {
            starts[from as usize + 1] += 1;
        }
        for at in 0..count {
            starts[at + 1] += starts[at];
        }
        let mut free = starts.clone();
        let mut ends = vec![0; starts[count] as usize];
        for (from, to) in edges {
            let place = &mut free[from as usize];
            ends[*place as usize] = to;
            *place += 1;
        }
        Self { starts, ends }
    }

    fn of(&self, number: u32) -> &[u32] {
        let at = number as usize;
        &self.ends[self.starts[at] as usize..self.starts[at + 1] as usize]
    }
}

/// The strongly connected component of each state, by Kosaraju's algorithm.
fn components(onward: &Edges, back: &Edges) -> Vec<u32> {
    let count = onward.starts.len() - 1;
    let mut order = Vec::with_capacity(count);
    let mut is_seen = vec![false; count];
    for root in 0..count as u32 {
        let mut path = vec![(root, 0)];
        if std::mem::replace(&mut is_seen[root as usize], true) {
            continue;
        }
        while let Some((number, next)) = path.pop() {
            let Some(to) = onward.of(number).get(next) else {
                order.push(number);
                continue;
            };
            path.push((number, next + 1));
            if !std::mem::replace(&mut is_seen[*to as usize], true) {
                path.push((*to, 0));
            }
        }
    }
    let mut component = vec![u32::MAX; count];
    for (number, root) in (0..).zip(order.into_iter().rev()) {
        let mut open = vec![root];
        while let Some(state) = open.pop() {
            if component[state as usize] == u32::MAX {
                component[state as usize] = number;
                open.extend(back.of(state));
            }
        }
    }
    component
}
