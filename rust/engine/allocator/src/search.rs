//! The search: first fit in the order of pools, slices and devices, with backtracking over every combination.
//!
//! After many failed attempts the search restarts with pruning: it skips devices that are interchangeable with a tried one,
//! states that failed before, and branches without enough devices. The result is the same.
//!
//! Devices of one request are tried only in ascending order, so that no set of devices is tried twice. The checks have the
//! same order as in Kubernetes, because the first error ends the search.

mod assign;
mod bound;
mod facts;
mod failed_states;
mod values;

use std::collections::HashMap;

use crate::capacity::Allocated;
use crate::constraints::Constraint;
use crate::counters::Counters;
use crate::error::Error;
use crate::in_use::{Capacities, InUse};
use crate::plan::{CandidateSet, MAX_DEVICES, PlannedClaim, Task};
use crate::query::{Deadline, Limits};
use crate::request::claim_name;
use crate::share_id::ShareIds;
use facts::Facts;
use failed_states::{FailedStates, Failure};

/// A device that is allocated to a request.
#[derive(Debug, Clone)]
pub(crate) struct Chosen {
    pub(crate) choice: usize,
    pub(crate) alternative: usize,
    pub(crate) candidate: usize,
    pub(crate) share_id: Option<String>,
    pub(crate) consumed: Capacities,
}

/// A complete allocation: the devices of each claim, and the alternative of each request.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) devices: Vec<Vec<Chosen>>,
    pub(crate) alternatives: Vec<Vec<usize>>,
}

/// The position of the search.
#[derive(Debug, Clone, Copy, Default)]
struct Position {
    claim: usize,
    choice: usize,
    alternative: usize,
    /// The number of devices of the task so far.
    device: i64,
}

/// The reason to end a branch of the search.
#[derive(Debug)]
enum Halt {
    /// The claim exceeds the limit of devices. Only other choices for earlier requests can help.
    TooManyDevices {
        claim: usize,
    },
    /// Many attempts failed. The search restarts with pruning.
    PruningNeeded,
    Fatal(Error),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Fatal(error)
    }
}

/// The data for pruning.
#[derive(Debug)]
struct Pruning {
    facts: Facts,
    failed: FailedStates,
}

/// Maximum depth of a search on the caller's stack.
const MAX_INLINE_DEPTH: usize = 500;
const MAX_DEPTH: usize = 200_000;
/// Stack for one step, in bytes. A debug build takes less than 2 KiB.
const STACK_BYTES_PER_STEP: usize = 8 * 1024;

/// The maximum depth of the search: one step for each device, request and claim.
fn depth(claims: &[PlannedClaim<'_>]) -> usize {
    let devices = usize::try_from(MAX_DEVICES).unwrap_or_default();
    claims
        .iter()
        .map(|planned| 2 + 2 * planned.choices.len() + devices)
        .sum()
}

#[derive(Debug)]
pub(crate) struct Search<'s, 'a> {
    candidate_set: &'s mut CandidateSet<'a>,
    claims: &'s [PlannedClaim<'a>],
    in_use: &'s InUse<'a>,
    constraints: Vec<Vec<Constraint<'a>>>,
    /// By pool; created at the first use.
    counters: Vec<Option<Counters<'a>>>,
    /// By candidate: the claims of this search with the device.
    allocating: Vec<Vec<usize>>,
    allocated: Allocated,
    found: Found,
    share_ids: ShareIds,
    limits: Limits,
    deadline: Deadline,
    steps: u64,
    /// The number of failed attempts.
    failed_attempts: u64,
    pruning: Option<Box<Pruning>>,
    /// Numbers of device states.
    device_states: HashMap<DeviceState, u32>,
}

/// The number of claims that use the device exclusively, whether the current claim does, whether it has shares, and their
/// amounts.
type DeviceState = (usize, bool, bool, String);

impl<'s, 'a> Search<'s, 'a> {
    pub(crate) fn new(
        candidate_set: &'s mut CandidateSet<'a>,
        claims: &'s [PlannedClaim<'a>],
        in_use: &'s InUse<'a>,
        limits: Limits,
        deadline: Deadline,
    ) -> Self {
        Self {
            constraints: claims
                .iter()
                .map(|planned| Constraint::of_claim(planned.claim, candidate_set.gates))
                .collect(),
            counters: candidate_set.pools.iter().map(|_| None).collect(),
            allocating: vec![Vec::new(); candidate_set.candidates.len()],
            allocated: Allocated::default(),
            found: Found {
                devices: vec![Vec::new(); claims.len()],
                alternatives: claims
                    .iter()
                    .map(|planned| vec![0; planned.choices.len()])
                    .collect(),
            },
            share_ids: ShareIds::new(limits.share_id_seed),
            candidate_set,
            claims,
            in_use,
            limits,
            deadline,
            steps: 0,
            failed_attempts: 0,
            pruning: None,
            device_states: HashMap::new(),
        }
    }

    /// The first allocation that fits, if any.
    pub(crate) fn run(self) -> Result<Option<Found>, Error> {
        let depth = depth(self.claims);
        if depth <= MAX_INLINE_DEPTH {
            return self.run_here();
        }
        // The recursion has one level for each device, and the caller's stack may be small.
        let failed = |message: String| Error::Depth { depth, message };
        if depth > MAX_DEPTH {
            return Err(failed(format!("the limit is {MAX_DEPTH}")));
        }
        std::thread::scope(|scope| {
            std::thread::Builder::new()
                .stack_size(depth * STACK_BYTES_PER_STEP)
                .spawn_scoped(scope, || self.run_here())
                .map_err(|error| failed(error.to_string()))?
                .join()
                .map_err(|_| failed("the search panicked".to_owned()))?
        })
    }

    fn run_here(mut self) -> Result<Option<Found>, Error> {
        let mut result = if self.limits.attempts_before_pruning == 0 {
            Err(Halt::PruningNeeded)
        } else {
            self.allocate(Position::default(), false, 0)
        };
        if matches!(result, Err(Halt::PruningNeeded)) {
            let facts = Facts::gather(&mut self)?;
            let failed = FailedStates::default();
            self.pruning = Some(Box::new(Pruning { facts, failed }));
            self.share_ids = ShareIds::new(self.limits.share_id_seed);
            result = self.allocate(Position::default(), false, 0);
        }
        match result {
            Ok(true) => Ok(Some(self.found)),
            Ok(false) | Err(Halt::PruningNeeded) => Ok(None),
            Err(Halt::Fatal(error)) => Err(error),
            Err(Halt::TooManyDevices { claim }) => Err(Error::TooManyDevices {
                claim: claim_name(self.claims[claim].claim),
            }),
        }
    }

    /// Allocates all requests from `position` on. `committed` means that the alternative is selected; `from` is the first
    /// candidate to try.
    fn allocate(&mut self, position: Position, committed: bool, from: usize) -> Result<bool, Halt> {
        self.check_deadline()?;
        // A bound compares all devices, so a step with pruning can take milliseconds.
        if self.pruning.is_some() {
            self.deadline.check()?;
        }
        let Some(mut pruning) = self.pruning.take() else {
            let result = self.allocate_next(position, committed, from);
            if matches!(result, Ok(false)) {
                self.failed_attempts += 1;
                if self.failed_attempts > self.limits.attempts_before_pruning {
                    return Err(Halt::PruningNeeded);
                }
            }
            return result;
        };
        let state = self.state(&pruning.facts, position, committed, from);
        let known = pruning.failed.get(&state);
        let hopeless =
            known.is_none() && self.is_infeasible(&pruning.facts, position, committed, from);
        if hopeless {
            pruning.failed.add(state.clone(), Failure::DoesNotFit);
        }
        self.pruning = Some(pruning);
        match known {
            Some(Failure::DoesNotFit) => return Ok(false),
            Some(Failure::TooManyDevices) => {
                return Err(Halt::TooManyDevices {
                    claim: position.claim,
                });
            }
            None if hopeless => return Ok(false),
            None => {}
        }
        let result = self.allocate_next(position, committed, from);
        let failure = match &result {
            Ok(false) => Failure::DoesNotFit,
            Err(Halt::TooManyDevices { .. }) => Failure::TooManyDevices,
            _ => return result,
        };
        if let Some(pruning) = &mut self.pruning {
            pruning.failed.add(state, failure);
        }
        result
    }

    fn allocate_next(
        &mut self,
        position: Position,
        committed: bool,
        from: usize,
    ) -> Result<bool, Halt> {
        let claims = self.claims;
        let Some(planned) = claims.get(position.claim) else {
            return Ok(true);
        };
        let Some(choice) = planned.choices.get(position.choice) else {
            let next = Position {
                claim: position.claim + 1,
                ..Position::default()
            };
            // With another alternative of an earlier claim, this claim may need fewer devices.
            return match self.allocate(next, false, 0) {
                Err(Halt::TooManyDevices { .. }) => Ok(false),
                result => result,
            };
        };
        if !committed && let crate::plan::Choice::First(tasks) = choice {
            return self.first_available(position, tasks.len());
        }
        let Some(task) = choice.task(position.alternative) else {
            return Ok(false);
        };
        if task.all.as_ref().is_some_and(Vec::is_empty) {
            return Ok(false);
        }
        if position.device >= task.count {
            let next = Position {
                claim: position.claim,
                choice: position.choice + 1,
                ..Position::default()
            };
            return self.allocate(next, false, 0);
        }
        let had_share = i64::try_from(self.found.devices[position.claim].len()).unwrap_or(i64::MAX);
        if task.count - position.device > MAX_DEVICES - had_share {
            return Err(Halt::TooManyDevices {
                claim: position.claim,
            });
        }
        match &task.all {
            Some(all) => self.assign_next_of_all(position, committed, task, all),
            None => self.assign_first_fit(position, committed, task, from),
        }
    }

    fn first_available(&mut self, position: Position, alternatives: usize) -> Result<bool, Halt> {
        let mut always_too_many = true;
        for alternative in 0..alternatives {
            let position = Position {
                alternative,
                ..position
            };
            match self.allocate(position, true, 0) {
                Err(Halt::TooManyDevices { .. }) => continue,
                Err(halt) => return Err(halt),
                Ok(true) => {
                    self.found.alternatives[position.claim][position.choice] = alternative;
                    return Ok(true);
                }
                Ok(false) => always_too_many = false,
            }
        }
        if always_too_many {
            Err(Halt::TooManyDevices {
                claim: position.claim,
            })
        } else {
            Ok(false)
        }
    }

    fn assign_next_of_all(
        &mut self,
        position: Position,
        committed: bool,
        task: &Task<'a>,
        all: &[usize],
    ) -> Result<bool, Halt> {
        let Some(candidate) = usize::try_from(position.device)
            .ok()
            .and_then(|next| all.get(next).copied())
        else {
            return Ok(false);
        };
        let Some(undo) = self.assign(position, task, candidate)? else {
            return Ok(false);
        };
        let next = Position {
            device: position.device + 1,
            ..position
        };
        let result = self.allocate(next, committed, 0);
        if !matches!(result, Ok(true)) {
            self.unassign(position, task, candidate, undo);
        }
        result
    }

    fn assign_first_fit(
        &mut self,
        position: Position,
        committed: bool,
        task: &Task<'a>,
        from: usize,
    ) -> Result<bool, Halt> {
        for candidate in from..self.candidate_set.candidates.len() {
            self.check_deadline()?;
            if self.is_busy(position, task, candidate) || self.is_repetition(position, candidate) {
                continue;
            }
            let claim = self.claims[position.claim].claim;
            if !self.candidate_set.selects(claim, task, candidate)? {
                continue;
            }
            if !self.has_capacity(position, task, candidate)? {
                continue;
            }
            let Some(undo) = self.assign(position, task, candidate)? else {
                continue;
            };
            let next = Position {
                device: position.device + 1,
                ..position
            };
            let result = self.allocate(next, committed, candidate + 1);
            if matches!(result, Ok(true)) {
                return result;
            }
            self.unassign(position, task, candidate, undo);
            result?;
        }
        Ok(false)
    }

    fn is_repetition(&mut self, position: Position, candidate: usize) -> bool {
        let Some(pruning) = self.pruning.take() else {
            return false;
        };
        let repeated = self.is_repeated(&pruning.facts, position, candidate);
        self.pruning = Some(pruning);
        repeated
    }

    /// Checks the deadline. Reads the clock once in many steps, because a step without pruning takes much less
    /// than a millisecond.
    fn check_deadline(&mut self) -> Result<(), Error> {
        const STEPS_BETWEEN: u64 = 256;
        self.steps += 1;
        if self.steps > self.limits.max_steps {
            return Err(Error::Steps {
                steps: self.limits.max_steps,
            });
        }
        if self.steps.is_multiple_of(STEPS_BETWEEN) {
            self.deadline.check()?;
        }
        Ok(())
    }
}
