//! Taking one device for one task, and giving it back exactly as it was.

use super::{Chosen, Place, Search};
use crate::capacity;
use crate::counters::Counters;
use crate::error::Error;
use crate::in_use::{Capacities, Use};
use crate::plan::Task;
use crate::request::claim_name;
use crate::taints;

/// What has to be undone when a device is given back.
#[derive(Debug)]
pub(super) struct Undo {
    counters: bool,
    constraints: usize,
    marked: bool,
    /// Whether the device had another share; none where no share was taken.
    share: Option<bool>,
}

impl<'s, 'a> Search<'s, 'a> {
    /// Whether someone has the device. Admin access minds only its own claim.
    pub(super) fn is_busy(&self, place: Place, task: &Task<'_>, candidate: usize) -> bool {
        let allocating = &self.allocating[candidate];
        if task.request.admin_access {
            allocating.contains(&place.claim)
        } else {
            !allocating.is_empty() || self.used(candidate).is_some_and(|used| used.whole)
        }
    }

    pub(super) fn used(&self, candidate: usize) -> Option<&'s Use> {
        self.in_use.of(self.matching.candidates[candidate].id())
    }

    pub(super) fn has_capacity(
        &self,
        place: Place,
        task: &Task<'_>,
        candidate: usize,
    ) -> Result<bool, Error> {
        let device = self.matching.candidates[candidate].device;
        let used = self.used(candidate).and_then(|used| used.capacity.as_ref());
        capacity::shortfall(
            task.request.capacity,
            device,
            used,
            self.taken.of(candidate),
        )
        .map(|shortfall| shortfall.is_none())
        .map_err(|what| self.capacity_error(place, task, candidate, &what))
    }

    fn capacity_error(&self, place: Place, task: &Task<'_>, candidate: usize, what: &str) -> Error {
        Error::request(
            &claim_name(self.claims[place.claim].claim),
            &task.request.name(),
            format!(
                "device {}: {what}",
                self.matching.candidates[candidate].id()
            ),
        )
    }

    /// Takes the device for the task where counters, taints, constraints and capacity allow it.
    pub(super) fn take(
        &mut self,
        place: Place,
        task: &Task<'a>,
        index: usize,
    ) -> Result<Option<Undo>, Error> {
        let candidate = self.matching.candidates[index];
        let shared = candidate.shared();
        if self.is_busy(place, task, index) {
            return Ok(None);
        }
        let mut undo = Undo {
            counters: false,
            constraints: 0,
            marked: false,
            share: None,
        };
        // The counters of a shared device are consumed once, by its first share.
        let paid = shared && self.has_share(index);
        if !paid && !candidate.device.consumes_counters.is_empty() {
            let pool = &self.matching.pools[candidate.pool];
            let counters = self.counters[candidate.pool]
                .get_or_insert_with(|| Counters::new(pool, self.in_use));
            if !counters.take(candidate.device) {
                return Ok(None);
            }
            undo.counters = true;
        }
        if taints::not_tolerated(candidate.device, task.request.tolerations).is_some() {
            self.give_back(place, task, index, undo);
            return Ok(None);
        }
        for position in 0..self.constraints[place.claim].len() {
            let constraint = &mut self.constraints[place.claim][position];
            if constraint.add(&task.request, candidate.device, candidate.id()) {
                undo.constraints += 1;
                continue;
            }
            let attribute = constraint.attribute;
            self.give_back(place, task, index, undo);
            if task.all.is_none() {
                return Ok(None);
            }
            return Err(Error::request(
                &claim_name(self.claims[place.claim].claim),
                &task.request.name(),
                format!(
                    "all devices are asked for, but with device {} the constraint on {attribute} does not hold",
                    candidate.id()
                ),
            ));
        }
        match self.has_capacity(place, task, index) {
            Ok(true) => {}
            result => {
                self.give_back(place, task, index, undo);
                return result.map(|_| None);
            }
        }
        let mut chosen = Chosen {
            choice: place.choice,
            alternative: place.alternative,
            candidate: index,
            share_id: None,
            consumed: Capacities::new(),
        };
        if shared {
            chosen.consumed = capacity::consumed(task.request.capacity, candidate.device)
                .map_err(|what| self.capacity_error(place, task, index, &what))?;
            chosen.share_id = Some(self.share_ids.draw());
            undo.share = Some(self.taken.add(index, &chosen.consumed));
        } else {
            self.allocating[index].push(place.claim);
            undo.marked = true;
        }
        self.found.devices[place.claim].push(chosen);
        Ok(Some(undo))
    }

    pub(super) fn has_share(&self, candidate: usize) -> bool {
        self.used(candidate)
            .is_some_and(|used| used.shared || used.capacity.is_some())
            || self.taken.of(candidate).is_some()
    }

    pub(super) fn give_back(&mut self, place: Place, task: &Task<'a>, index: usize, undo: Undo) {
        let candidate = self.matching.candidates[index];
        if undo.marked || undo.share.is_some() {
            let chosen = self.found.devices[place.claim].pop();
            if let (Some(chosen), Some(had)) = (chosen, undo.share) {
                self.taken.remove(index, &chosen.consumed, had);
            }
        }
        if undo.marked {
            self.allocating[index].retain(|claim| *claim != place.claim);
        }
        for constraint in self.constraints[place.claim][..undo.constraints]
            .iter_mut()
            .rev()
        {
            constraint.remove(&task.request);
        }
        if undo.counters
            && let Some(counters) = &mut self.counters[candidate.pool]
        {
            counters.give_back(candidate.device);
        }
    }
}
