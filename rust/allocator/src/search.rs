//! The search: first fit in the order of pools, slices and devices, with backtracking over every combination.
//!
//! A search that fails often begins again and prunes: it passes over devices that are interchangeable with one that was
//! tried, states that failed before, and whatever cannot fit when it is only counted. Its answer is the same.
//!
//! Devices of one request are only ever tried in ascending order, so that no set of them is tried twice. The order of the
//! checks is Kubernetes', because an error ends the search where it is met.

mod bound;
mod facts;
mod failed;
mod take;

use std::collections::HashMap;

use crate::capacity::Taken;
use crate::constraints::Constraint;
use crate::counters::Counters;
use crate::error::Error;
use crate::in_use::{Capacities, InUse};
use crate::plan::{MAX_DEVICES, Match, PlannedClaim, Task};
use crate::question::{Deadline, Limits};
use crate::request::claim_name;
use crate::share_id::ShareIds;
use facts::Facts;
use failed::{Failed, Failure};

/// A device that was chosen for a request.
#[derive(Debug, Clone)]
pub(crate) struct Chosen {
    pub(crate) choice: usize,
    pub(crate) alternative: usize,
    pub(crate) candidate: usize,
    pub(crate) share_id: Option<String>,
    pub(crate) consumed: Capacities,
}

/// A complete allocation: the devices of each claim, and the alternative that each request took.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) devices: Vec<Vec<Chosen>>,
    pub(crate) alternatives: Vec<Vec<usize>>,
}

/// Where the search stands.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    claim: usize,
    choice: usize,
    alternative: usize,
    /// How many devices the task has so far.
    device: i64,
}

/// Why a branch of the search ends at once.
#[derive(Debug)]
enum Halt {
    /// The claim would get more devices than one may have: nothing below the requests before it can help.
    TooManyDevices {
        claim: usize,
    },
    /// So much was tried in vain that it is worth finding out what need not be tried.
    TriedInVain,
    Fatal(Error),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Fatal(error)
    }
}

/// What a search that prunes knows.
#[derive(Debug)]
struct Pruning {
    facts: Facts,
    failed: Failed,
}

/// Steps that surely fit on any thread's stack.
const SHALLOW: usize = 500;
const DEEPEST: usize = 200_000;
/// Bytes; measured at below 2 KiB without optimisation.
const STACK_PER_STEP: usize = 8 * 1024;

/// How deep the search goes at most: one step for each device, request and claim.
fn depth(claims: &[PlannedClaim<'_>]) -> usize {
    let devices = usize::try_from(MAX_DEVICES).unwrap_or_default();
    claims
        .iter()
        .map(|planned| 2 + 2 * planned.choices.len() + devices)
        .sum()
}

#[derive(Debug)]
pub(crate) struct Search<'s, 'a> {
    matching: &'s mut Match<'a>,
    claims: &'s [PlannedClaim<'a>],
    in_use: &'s InUse<'a>,
    constraints: Vec<Vec<Constraint<'a>>>,
    /// By pool; filled when first needed.
    counters: Vec<Option<Counters<'a>>>,
    /// By candidate: the claims of this search that have it.
    allocating: Vec<Vec<usize>>,
    taken: Taken,
    found: Found,
    share_ids: ShareIds,
    limits: Limits,
    deadline: Deadline,
    steps: u64,
    /// Attempts that failed.
    in_vain: u64,
    pruning: Option<Box<Pruning>>,
    /// Numbers of what can have been done to a device.
    standings: HashMap<Standing, u32>,
}

/// How many claims have the device alone, whether the one that is asked for does, whether it has shares, their amounts.
type Standing = (usize, bool, bool, String);

impl<'s, 'a> Search<'s, 'a> {
    pub(crate) fn new(
        matching: &'s mut Match<'a>,
        claims: &'s [PlannedClaim<'a>],
        in_use: &'s InUse<'a>,
        limits: Limits,
        deadline: Deadline,
    ) -> Self {
        let constraints = claims
            .iter()
            .map(|planned| {
                let specs = &planned.claim.spec.devices.constraints;
                specs.iter().filter_map(Constraint::new).collect()
            })
            .collect();
        Self {
            constraints,
            counters: matching.pools.iter().map(|_| None).collect(),
            allocating: vec![Vec::new(); matching.candidates.len()],
            taken: Taken::default(),
            found: Found {
                devices: vec![Vec::new(); claims.len()],
                alternatives: claims
                    .iter()
                    .map(|planned| vec![0; planned.choices.len()])
                    .collect(),
            },
            share_ids: ShareIds::new(limits.share_id_seed),
            matching,
            claims,
            in_use,
            limits,
            deadline,
            steps: 0,
            in_vain: 0,
            pruning: None,
            standings: HashMap::new(),
        }
    }

    /// The first allocation that fits, if any.
    pub(crate) fn run(self) -> Result<Option<Found>, Error> {
        let depth = depth(self.claims);
        if depth <= SHALLOW {
            return self.run_here();
        }
        // The search goes one call deeper for each device, and the caller's stack may be small.
        let failed = |what: String| Error::Depth { depth, what };
        if depth > DEEPEST {
            return Err(failed(format!("{DEEPEST} are allowed")));
        }
        std::thread::scope(|scope| {
            std::thread::Builder::new()
                .stack_size(depth * STACK_PER_STEP)
                .spawn_scoped(scope, || self.run_here())
                .map_err(|error| failed(error.to_string()))?
                .join()
                .map_err(|_| failed("the search broke off".to_owned()))?
        })
    }

    fn run_here(mut self) -> Result<Option<Found>, Error> {
        let mut result = if self.limits.attempts_before_pruning == 0 {
            Err(Halt::TriedInVain)
        } else {
            self.allocate(Place::default(), false, 0)
        };
        if matches!(result, Err(Halt::TriedInVain)) {
            let facts = Facts::gather(&mut self)?;
            let failed = Failed::default();
            self.pruning = Some(Box::new(Pruning { facts, failed }));
            self.share_ids = ShareIds::new(self.limits.share_id_seed);
            result = self.allocate(Place::default(), false, 0);
        }
        match result {
            Ok(true) => Ok(Some(self.found)),
            Ok(false) | Err(Halt::TriedInVain) => Ok(None),
            Err(Halt::Fatal(error)) => Err(error),
            Err(Halt::TooManyDevices { claim }) => Err(Error::TooManyDevices {
                claim: claim_name(self.claims[claim].claim),
            }),
        }
    }

    /// Allocates all that is still missing from `place` on. `committed` tells that the alternative is chosen; `from` is the
    /// first candidate that may be taken.
    fn allocate(&mut self, place: Place, committed: bool, from: usize) -> Result<bool, Halt> {
        self.check_deadline()?;
        let Some(mut pruning) = self.pruning.take() else {
            let result = self.allocate_next(place, committed, from);
            if matches!(result, Ok(false)) {
                self.in_vain += 1;
                if self.in_vain > self.limits.attempts_before_pruning {
                    return Err(Halt::TriedInVain);
                }
            }
            return result;
        };
        let state = self.state(&pruning.facts, place, committed, from);
        let known = pruning.failed.get(&state);
        let hopeless = known.is_none() && self.is_hopeless(&pruning.facts, place, committed, from);
        if hopeless {
            pruning.failed.add(state.clone(), Failure::DoesNotFit);
        }
        self.pruning = Some(pruning);
        match known {
            Some(Failure::DoesNotFit) => return Ok(false),
            Some(Failure::TooManyDevices) => {
                return Err(Halt::TooManyDevices { claim: place.claim });
            }
            None if hopeless => return Ok(false),
            None => {}
        }
        let result = self.allocate_next(place, committed, from);
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

    fn allocate_next(&mut self, place: Place, committed: bool, from: usize) -> Result<bool, Halt> {
        let claims = self.claims;
        let Some(planned) = claims.get(place.claim) else {
            return Ok(true);
        };
        let Some(choice) = planned.choices.get(place.choice) else {
            let next = Place {
                claim: place.claim + 1,
                ..Place::default()
            };
            // A claim before this one may choose an alternative that leaves it to do with fewer devices.
            return match self.allocate(next, false, 0) {
                Err(Halt::TooManyDevices { .. }) => Ok(false),
                result => result,
            };
        };
        if !committed && let crate::plan::Choice::First(tasks) = choice {
            return self.first_available(place, tasks.len());
        }
        let Some(task) = choice.task(place.alternative) else {
            return Ok(false);
        };
        if task.all.as_ref().is_some_and(Vec::is_empty) {
            return Ok(false);
        }
        if place.device >= task.count {
            let next = Place {
                claim: place.claim,
                choice: place.choice + 1,
                ..Place::default()
            };
            return self.allocate(next, false, 0);
        }
        let had = i64::try_from(self.found.devices[place.claim].len()).unwrap_or(i64::MAX);
        if task.count - place.device > MAX_DEVICES - had {
            return Err(Halt::TooManyDevices { claim: place.claim });
        }
        match &task.all {
            Some(all) => self.take_next_of_all(place, committed, task, all),
            None => self.take_first_that_fits(place, committed, task, from),
        }
    }

    fn first_available(&mut self, place: Place, alternatives: usize) -> Result<bool, Halt> {
        let mut always_too_many = true;
        for alternative in 0..alternatives {
            let place = Place {
                alternative,
                ..place
            };
            match self.allocate(place, true, 0) {
                Err(Halt::TooManyDevices { .. }) => continue,
                Err(halt) => return Err(halt),
                Ok(true) => {
                    self.found.alternatives[place.claim][place.choice] = alternative;
                    return Ok(true);
                }
                Ok(false) => always_too_many = false,
            }
        }
        if always_too_many {
            Err(Halt::TooManyDevices { claim: place.claim })
        } else {
            Ok(false)
        }
    }

    fn take_next_of_all(
        &mut self,
        place: Place,
        committed: bool,
        task: &Task<'a>,
        all: &[usize],
    ) -> Result<bool, Halt> {
        let Some(candidate) = usize::try_from(place.device)
            .ok()
            .and_then(|next| all.get(next).copied())
        else {
            return Ok(false);
        };
        let Some(undo) = self.take(place, task, candidate)? else {
            return Ok(false);
        };
        let next = Place {
            device: place.device + 1,
            ..place
        };
        let result = self.allocate(next, committed, 0);
        if !matches!(result, Ok(true)) {
            self.give_back(place, task, candidate, undo);
        }
        result
    }

    fn take_first_that_fits(
        &mut self,
        place: Place,
        committed: bool,
        task: &Task<'a>,
        from: usize,
    ) -> Result<bool, Halt> {
        for candidate in from..self.matching.candidates.len() {
            self.check_deadline()?;
            if self.is_busy(place, task, candidate) || self.is_repetition(place, candidate) {
                continue;
            }
            let claim = self.claims[place.claim].claim;
            if !self.matching.selects(claim, task, candidate)? {
                continue;
            }
            if !self.has_capacity(place, task, candidate)? {
                continue;
            }
            let Some(undo) = self.take(place, task, candidate)? else {
                continue;
            };
            let next = Place {
                device: place.device + 1,
                ..place
            };
            let result = self.allocate(next, committed, candidate + 1);
            if matches!(result, Ok(true)) {
                return result;
            }
            self.give_back(place, task, candidate, undo);
            result?;
        }
        Ok(false)
    }

    fn is_repetition(&mut self, place: Place, candidate: usize) -> bool {
        let Some(pruning) = self.pruning.take() else {
            return false;
        };
        let repeated = self.is_repeated(&pruning.facts, place, candidate);
        self.pruning = Some(pruning);
        repeated
    }

    /// The clock is read once in many steps: a step takes much less than a millisecond.
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
