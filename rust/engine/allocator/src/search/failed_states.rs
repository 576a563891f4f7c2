//! Failed states of a search, so that no state is searched twice.

use std::collections::HashMap;

use super::facts::{Facts, Fit};
use super::values::Values;
use super::{Position, Search};
use crate::constraints::Constraint;

/// Limit for all recorded states, in bytes.
const MAX_BYTES: usize = 64 << 20;

/// The reason why a state failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    DoesNotFit,
    TooManyDevices,
}

#[derive(Debug, Default)]
pub(super) struct FailedStates {
    states: HashMap<Box<[u32]>, Failure>,
    bytes: usize,
}

impl FailedStates {
    pub(super) fn get(&self, state: &[u32]) -> Option<Failure> {
        self.states.get(state).copied()
    }

    pub(super) fn add(&mut self, state: Vec<u32>, failure: Failure) {
        self.bytes += size_of_val(state.as_slice()) + 4 * size_of::<usize>();
        if self.bytes <= MAX_BYTES {
            self.states.insert(state.into_boxed_slice(), failure);
        }
    }
}

impl Search<'_, '_> {
    /// The state that determines the result of the rest of the search. It contains the class of each used device, not the
    /// device, and nothing about unused devices.
    pub(super) fn state(
        &mut self,
        facts: &Facts,
        position: Position,
        committed: bool,
        from: usize,
    ) -> Vec<u32> {
        let had_share = self.found.devices.get(position.claim).map_or(0, Vec::len);
        let from = self.next_that_fits(facts, position, committed, from);
        let mut state = vec![
            number(position.claim),
            number(position.choice),
            number(position.alternative),
            u32::try_from(position.device).unwrap_or(u32::MAX),
            u32::from(committed),
            number(from),
            number(had_share),
        ];
        self.add_values(facts, position, &mut state);
        let chosen = self.found.devices.iter().take(position.claim + 1).flatten();
        let mut touched: Vec<usize> = chosen.map(|chosen| chosen.candidate).collect();
        touched.sort_unstable();
        touched.dedup();
        let mut devices: Vec<[u32; 2]> = touched
            .into_iter()
            .map(|index| {
                let after = usize::from(index >= from);
                let device_state = self.device_state(position, index);
                [number(2 * facts.class[index] + after), device_state]
            })
            .collect();
        devices.sort_unstable();
        state.extend(devices.into_iter().flatten());
        state
    }

    /// The number of the device's state in the search: the number of claims with exclusive use, whether the claim at
    /// `position` is one of them, and the consumption of its shares.
    pub(super) fn device_state(&mut self, position: Position, index: usize) -> u32 {
        let holders = &self.allocating[index];
        let shares = self.allocated.of(index);
        if holders.is_empty() && shares.is_none() {
            return 0;
        }
        let own = holders.contains(&position.claim);
        let mut amounts = String::new();
        for (name, amount) in shares.into_iter().flatten() {
            amounts += &format!("{name}={amount};");
        }
        let next = number(self.device_states.len() + 1);
        let device_state = (holders.len(), own, shares.is_some(), amounts);
        *self.device_states.entry(device_state).or_insert(next)
    }

    /// The next candidate that fits the task. All start positions before it are equivalent.
    fn next_that_fits(
        &self,
        facts: &Facts,
        position: Position,
        committed: bool,
        from: usize,
    ) -> usize {
        let choice = self
            .claims
            .get(position.claim)
            .and_then(|planned| planned.choices.get(position.choice));
        let task = choice
            .filter(|choice| committed || choice.tasks().len() == 1)
            .and_then(|choice| choice.task(position.alternative));
        let Some(task) = task else {
            return from;
        };
        facts.fits[task.key][from..]
            .iter()
            .position(|fit| *fit != Fit::No)
            .map_or(facts.class.len(), |next| from + next)
    }

    /// The different values that the claim's constraints accepted. What they have in common depends on nothing else.
    fn add_values(&self, facts: &Facts, position: Position, state: &mut Vec<u32>) {
        let Some(constraints) = self.constraints.get(position.claim) else {
            return;
        };
        for (constraint, values) in constraints.iter().zip(&facts.values[position.claim]) {
            let mut accepted: Vec<u32> = self
                .accepted(position.claim, constraint, values)
                .map(number)
                .collect();
            accepted.sort_unstable();
            accepted.dedup();
            state.push(number(accepted.len()));
            state.extend(accepted);
        }
    }

    /// The numbers of the accepted values of a constraint.
    fn accepted<'v>(
        &'v self,
        claim: usize,
        constraint: &'v Constraint<'_>,
        values: &'v Values,
    ) -> impl Iterator<Item = usize> + 'v {
        self.found.devices[claim].iter().filter_map(move |chosen| {
            let task = self.claims[claim].choices[chosen.choice].task(chosen.alternative)?;
            constraint
                .applies_to(&task.request)
                .then_some(values.whole[chosen.candidate])
                .flatten()
        })
    }

    /// Whether an equivalent device before `index` is free. The search already tried that device without success.
    pub(super) fn is_repeated(&mut self, facts: &Facts, position: Position, index: usize) -> bool {
        if facts.previous[index].is_none() {
            return false;
        }
        let device_state = self.device_state(position, index);
        let mut previous = facts.previous[index];
        while let Some(other) = previous {
            let chosen = self.found.devices[position.claim]
                .iter()
                .any(|chosen| chosen.choice == position.choice && chosen.candidate == other);
            if !chosen && self.device_state(position, other) == device_state {
                return true;
            }
            previous = facts.previous[other];
        }
        false
    }
}

/// Saturates; practical numbers of devices, claims and states are far smaller.
fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
