//! Assigns one device to one task, and undoes the assignment.

use super::{Chosen, Position, Search};
use crate::capacity;
use crate::counters::Counters;
use crate::error::Error;
use crate::in_use::{Capacities, Use};
use crate::plan::Task;
use crate::request::claim_name;
use crate::taints;

/// The changes to undo when a device is released.
#[derive(Debug)]
pub(super) struct Undo {
    counters: bool,
    constraints: usize,
    marked: bool,
    /// Whether the device already had a share; `None` if no share was added.
    share: Option<bool>,
}

impl<'s, 'a> Search<'s, 'a> {
    /// Whether the device is in use. Admin access conflicts only with its own claim.
    pub(super) fn is_busy(&self, position: Position, task: &Task<'_>, candidate: usize) -> bool {
        let allocating = &self.allocating[candidate];
        if task.request.admin_access {
            allocating.contains(&position.claim)
        } else {
            !allocating.is_empty() || self.used(candidate).is_some_and(|used| used.whole)
        }
    }

    pub(super) fn used(&self, candidate: usize) -> Option<&'s Use> {
        self.in_use
            .of(self.candidate_set.candidates[candidate].id())
    }

    pub(super) fn has_capacity(
        &self,
        position: Position,
        task: &Task<'_>,
        candidate: usize,
    ) -> Result<bool, Error> {
        let known = self.candidate_set.candidates[candidate];
        let used = self.used(candidate).and_then(|used| used.capacity.as_ref());
        capacity::shortfall(
            task.request.capacity,
            known.device,
            self.candidate_set.capacity_names(&known),
            used,
            self.allocated.of(candidate),
        )
        .map(|shortfall| shortfall.is_none())
        .map_err(|message| self.capacity_error(position, task, candidate, &message))
    }

    fn capacity_error(
        &self,
        position: Position,
        task: &Task<'_>,
        candidate: usize,
        message: &str,
    ) -> Error {
        Error::request(
            &claim_name(self.claims[position.claim].claim),
            &task.request.name(),
            format!(
                "device {}: {message}",
                self.candidate_set.candidates[candidate].id()
            ),
        )
    }

    /// Assigns the device to the task if counters, taints, constraints and capacity allow it.
    pub(super) fn assign(
        &mut self,
        position: Position,
        task: &Task<'a>,
        index: usize,
    ) -> Result<Option<Undo>, Error> {
        let candidate = self.candidate_set.candidates[index];
        let shared = candidate.shared();
        if self.is_busy(position, task, index)
            || !self.candidate_set.operations_are_skippable(&candidate)
        {
            return Ok(None);
        }
        let mut undo = Undo {
            counters: false,
            constraints: 0,
            marked: false,
            share: None,
        };
        // The counters of a shared device are consumed once, by its first share.
        let counters_consumed = shared && self.has_share(index);
        if !counters_consumed && !candidate.device.consumes_counters.is_empty() {
            let pool = &self.candidate_set.pools[candidate.pool];
            let counters = self.counters[candidate.pool]
                .get_or_insert_with(|| Counters::new(pool, self.in_use));
            if !counters.consume(candidate.device) {
                return Ok(None);
            }
            undo.counters = true;
        }
        if taints::not_tolerated(candidate.device, task.request.tolerations).is_some() {
            self.unassign(position, task, index, undo);
            return Ok(None);
        }
        for constraint_index in 0..self.constraints[position.claim].len() {
            let constraint = &mut self.constraints[position.claim][constraint_index];
            if constraint.add(&task.request, candidate.device, candidate.id()) {
                undo.constraints += 1;
                continue;
            }
            let attribute = constraint.attribute;
            self.unassign(position, task, index, undo);
            if task.all.is_none() {
                return Ok(None);
            }
            return Err(Error::request(
                &claim_name(self.claims[position.claim].claim),
                &task.request.name(),
                format!(
                    "all devices are requested, but device {} violates the constraint on {attribute}",
                    candidate.id()
                ),
            ));
        }
        match self.has_capacity(position, task, index) {
            Ok(true) => {}
            result => {
                self.unassign(position, task, index, undo);
                return result.map(|_| None);
            }
        }
        let mut chosen = Chosen {
            choice: position.choice,
            alternative: position.alternative,
            candidate: index,
            share_id: None,
            consumed: Capacities::new(),
        };
        if shared {
            let names = self.candidate_set.capacity_names(&candidate);
            chosen.consumed = capacity::consumed(task.request.capacity, candidate.device, names)
                .map_err(|message| self.capacity_error(position, task, index, &message))?;
            chosen.share_id = Some(self.share_ids.generate());
            undo.share = Some(self.allocated.add(index, &chosen.consumed));
        } else {
            self.allocating[index].push(position.claim);
            undo.marked = true;
        }
        self.found.devices[position.claim].push(chosen);
        Ok(Some(undo))
    }

    pub(super) fn has_share(&self, candidate: usize) -> bool {
        self.used(candidate)
            .is_some_and(|used| used.shared || used.capacity.is_some())
            || self.allocated.of(candidate).is_some()
    }

    pub(super) fn unassign(
        &mut self,
        position: Position,
        task: &Task<'a>,
        index: usize,
        undo: Undo,
    ) {
        let candidate = self.candidate_set.candidates[index];
        if undo.marked || undo.share.is_some() {
            let chosen = self.found.devices[position.claim].pop();
            if let (Some(chosen), Some(had_share)) = (chosen, undo.share) {
                self.allocated.remove(index, &chosen.consumed, had_share);
            }
        }
        if undo.marked {
            self.allocating[index].retain(|claim| *claim != position.claim);
        }
        for constraint in self.constraints[position.claim][..undo.constraints]
            .iter_mut()
            .rev()
        {
            constraint.remove(&task.request);
        }
        if undo.counters
            && let Some(counters) = &mut self.counters[candidate.pool]
        {
            counters.release(candidate.device);
        }
    }
}
