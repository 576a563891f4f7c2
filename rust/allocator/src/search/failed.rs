//! States of a search from which nothing was found, so that no state is searched twice.

use std::collections::HashMap;

use super::facts::{Facts, Fit};
use super::{Place, Search};

/// Bytes of all states that are remembered.
const MAX_BYTES: usize = 64 << 20;

/// How a state failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    DoesNotFit,
    TooManyDevices,
}

#[derive(Debug, Default)]
pub(super) struct Failed {
    states: HashMap<Box<[u32]>, Failure>,
    bytes: usize,
}

impl Failed {
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
    /// Everything that what can still be found depends on. Devices of one class are counted, not named, and of those
    /// that were not touched nothing needs to be said.
    pub(super) fn state(
        &mut self,
        facts: &Facts,
        place: Place,
        committed: bool,
        from: usize,
    ) -> Vec<u32> {
        let had = self.found.devices.get(place.claim).map_or(0, Vec::len);
        let from = self.next_that_fits(facts, place, committed, from);
        let mut state = vec![
            number(place.claim),
            number(place.choice),
            number(place.alternative),
            u32::try_from(place.device).unwrap_or(u32::MAX),
            u32::from(committed),
            number(from),
            number(had),
        ];
        self.add_values(facts, place, &mut state);
        let chosen = self.found.devices.iter().take(place.claim + 1).flatten();
        let mut touched: Vec<usize> = chosen.map(|chosen| chosen.candidate).collect();
        touched.sort_unstable();
        touched.dedup();
        let mut devices: Vec<[u32; 2]> = touched
            .into_iter()
            .map(|index| {
                let after = usize::from(index >= from);
                let standing = self.standing(place, index);
                [number(2 * facts.class[index] + after), standing]
            })
            .collect();
        devices.sort_unstable();
        state.extend(devices.into_iter().flatten());
        state
    }

    /// A number for what the search has done to a device: how many claims have it alone, whether the claim at `place` is
    /// one of them, and what its shares consume.
    pub(super) fn standing(&mut self, place: Place, index: usize) -> u32 {
        let holders = &self.allocating[index];
        let shares = self.taken.of(index);
        if holders.is_empty() && shares.is_none() {
            return 0;
        }
        let own = holders.contains(&place.claim);
        let mut amounts = String::new();
        for (name, amount) in shares.into_iter().flatten() {
            amounts += &format!("{name}={amount};");
        }
        let next = number(self.standings.len() + 1);
        let standing = (holders.len(), own, shares.is_some(), amounts);
        *self.standings.entry(standing).or_insert(next)
    }

    /// Between two devices that the task can have, it does not matter where it goes on.
    fn next_that_fits(&self, facts: &Facts, place: Place, committed: bool, from: usize) -> usize {
        let choice = self
            .claims
            .get(place.claim)
            .and_then(|planned| planned.choices.get(place.choice));
        let task = choice
            .filter(|choice| committed || choice.tasks().len() == 1)
            .and_then(|choice| choice.task(place.alternative));
        let Some(task) = task else {
            return from;
        };
        facts.fits[task.key][from..]
            .iter()
            .position(|fit| *fit != Fit::No)
            .map_or(facts.class.len(), |next| from + next)
    }

    /// The values that the constraints of the claim have accepted: the first where all must be the same, all where they
    /// must differ.
    fn add_values(&self, facts: &Facts, place: Place, state: &mut Vec<u32>) {
        let Some(constraints) = self.constraints.get(place.claim) else {
            return;
        };
        for (constraint, values) in constraints.iter().zip(&facts.values[place.claim]) {
            let accepted = self.accepted(place.claim, constraint, values);
            let mut accepted: Vec<u32> = accepted
                .map(number)
                .take(if constraint.distinct { usize::MAX } else { 1 })
                .collect();
            accepted.sort_unstable();
            state.push(number(accepted.len()));
            state.extend(accepted);
        }
    }

    /// The numbers of the values that a constraint of the claim has accepted so far.
    pub(super) fn accepted<'v>(
        &'v self,
        claim: usize,
        constraint: &'v crate::constraints::Constraint<'_>,
        values: &'v [Option<usize>],
    ) -> impl Iterator<Item = usize> + 'v {
        self.found.devices[claim].iter().filter_map(move |chosen| {
            let task = self.claims[claim].choices[chosen.choice].task(chosen.alternative)?;
            constraint
                .applies_to(&task.request)
                .then_some(values[chosen.candidate])
                .flatten()
        })
    }

    /// Whether a device that is before `index` and not chosen by the request could be taken in its place. All that begins
    /// with that one was tried, and found nothing.
    pub(super) fn is_repeated(&mut self, facts: &Facts, place: Place, index: usize) -> bool {
        if facts.previous[index].is_none() {
            return false;
        }
        let standing = self.standing(place, index);
        let mut previous = facts.previous[index];
        while let Some(other) = previous {
            let chosen = self.found.devices[place.claim]
                .iter()
                .any(|chosen| chosen.choice == place.choice && chosen.candidate == other);
            if !chosen && self.standing(place, other) == standing {
                return true;
            }
            previous = facts.previous[other];
        }
        false
    }
}

/// There are far fewer devices, claims and states than that.
fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
