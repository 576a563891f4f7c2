//! A query about one node, and its response in objects of the API.

use std::time::{Duration, Instant};

use dra_api::{AllocationResult, Node, ResourceClaim};
use serde::Serialize;

use crate::error::Error;
use crate::gates::Gates;
use crate::held::Held;
use crate::in_use::{DeviceId, InUse};
use crate::node_selector;
use crate::plan::{CandidateSet, Classes, plan_claim};
use crate::pools::{self, PoolState};
use crate::programs::Programs;
use crate::request::claim_name;
use crate::result;
use crate::search::Search;
use crate::slices::SliceIndex;

/// The time limit of kube-scheduler for one allocation (`filterTimeout` of the plugin DynamicResources).
const DEFAULT_DEADLINE_MS: u64 = 10_000;

/// Devices of a claim that a text names.
const MAX_NAMED_DEVICES: usize = 3;

/// About one millisecond of search.
const ATTEMPTS_BEFORE_PRUNING: u64 = 500;

/// The limits of a search, and the seed of share IDs.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub deadline_ms: u64,
    /// Maximum number of steps of the search. Unlike the deadline, the limit does not depend on the machine.
    pub max_steps: u64,
    /// Number of failed attempts before the search gathers facts for pruning. Almost all queries end earlier and need no
    /// facts. The result does not depend on this value.
    pub attempts_before_pruning: u64,
    /// Seed of the share IDs. The same seed gives the same IDs.
    pub share_id_seed: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            deadline_ms: DEFAULT_DEADLINE_MS,
            max_steps: u64::MAX,
            attempts_before_pruning: ATTEMPTS_BEFORE_PRUNING,
            share_id_seed: 0,
        }
    }
}

impl Limits {
    /// The deadline of a search that started at `started`.
    pub(crate) fn deadline(&self, started: Instant) -> Deadline {
        let at = started.checked_add(Duration::from_millis(self.deadline_ms));
        Deadline {
            // An overflow means no deadline; a day has the same effect.
            at: at.unwrap_or(started + Duration::from_secs(86_400)),
            milliseconds: self.deadline_ms,
        }
    }
}

/// The deadline of a search.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    pub(crate) at: Instant,
    milliseconds: u64,
}

impl Deadline {
    /// The earlier one of this deadline and the time `within` from now.
    pub(crate) fn capped(self, within: Duration) -> Self {
        Self {
            at: self.at.min(Instant::now() + within),
            ..self
        }
    }

    /// The time `within` from now, even if this deadline is earlier.
    pub(crate) fn renewed(self, within: Duration) -> Self {
        Self {
            at: Instant::now() + within,
            ..self
        }
    }

    /// The remaining time, divided by a number of tasks.
    pub(crate) fn share_of(&self, tasks: usize) -> Duration {
        let remaining = self.at.saturating_duration_since(Instant::now());
        remaining / u32::try_from(tasks.max(1)).unwrap_or(u32::MAX)
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if Instant::now() >= self.at {
            return Err(self.error());
        }
        Ok(())
    }

    pub(crate) fn error(&self) -> Error {
        Error::Deadline {
            milliseconds: self.milliseconds,
        }
    }
}

/// The result of an allocation: all claims or none. `results` has one entry for each claim, or is empty.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Response {
    pub allocated: bool,
    pub results: Vec<AllocationResult>,
    /// The error of the allocation. `None` if the claims do not fit.
    pub error: Option<String>,
    /// At the error, kube-scheduler places the pod on no node.
    pub fatal: bool,
}

impl Response {
    /// The response of a kube-scheduler of this minor version.
    pub(crate) fn new(result: Result<Option<Vec<AllocationResult>>, Error>, minor: u32) -> Self {
        match result {
            Ok(Some(results)) => Self {
                allocated: true,
                results,
                ..Self::default()
            },
            Ok(None) => Self::default(),
            Err(error) => Self {
                error: Some(error.to_string()),
                fatal: error.ends_attempt(minor),
                ..Self::default()
            },
        }
    }
}

/// A query with everything that is computed once for several queries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResolvedQuery<'a> {
    pub(crate) node: &'a Node,
    pub(crate) classes: &'a Classes<'a>,
    pub(crate) slices: &'a SliceIndex,
    /// The claims to allocate. Claims with an allocation keep it.
    pub(crate) claims: &'a [ResourceClaim],
    /// The claims that a cluster holds.
    pub(crate) held: Option<&'a Held>,
    /// The devices that the query itself has allocated so far, with their use by held claims.
    pub(crate) placed: Option<&'a Held>,
    pub(crate) programs: &'a Programs,
    pub(crate) gates: Gates,
    pub(crate) limits: Limits,
    /// Of everything that is computed for the query: searches without some constraints, and the reason, share it.
    pub(crate) deadline: Deadline,
}

impl<'a> ResolvedQuery<'a> {
    pub(crate) fn in_use(&self) -> InUse<'a> {
        InUse::gather(self.held, self.placed, self.claims)
    }

    /// The candidates of the node.
    pub(crate) fn candidate_set(&self) -> Result<CandidateSet<'a>, Error> {
        let pools = pools::gather(self.slices, self.node)?;
        Ok(CandidateSet::new(
            self.node,
            pools,
            self.gates,
            self.programs,
            self.deadline,
        ))
    }

    /// The allocations, or `None` if the claims do not fit.
    pub(crate) fn allocate(&self) -> Result<Option<Vec<AllocationResult>>, Error> {
        let in_use = self.in_use();
        let reachable = self.allocations_are_usable()?;
        let pending = || {
            let claims = self.claims.iter();
            claims.filter(|claim| allocation_of(claim).is_none())
        };
        let mut found = Vec::new();
        if pending().next().is_some() {
            let mut candidate_set = self.candidate_set()?;
            let mut planned = Vec::new();
            for claim in pending() {
                planned.push(plan_claim(claim, self.classes, &mut candidate_set)?);
            }
            let search = Search::new(
                &mut candidate_set,
                &planned,
                &in_use,
                self.limits,
                self.deadline,
            );
            let Some(solution) = search.run()? else {
                return match unknown_pool(&candidate_set) {
                    Some(error) => Err(error),
                    None => Ok(None),
                };
            };
            for (index, claim) in planned.iter().enumerate() {
                found.push(result::allocation(
                    claim,
                    &solution.devices[index],
                    &solution.alternatives[index],
                    &candidate_set,
                )?);
            }
        }
        if !reachable {
            return Ok(None);
        }
        let mut found = found.into_iter();
        let results = self
            .claims
            .iter()
            .filter_map(|claim| allocation_of(claim).cloned().or_else(|| found.next()))
            .collect();
        Ok(Some(results))
    }

    /// Where a claim is allocated, if the node cannot use it: the predicate of a sentence.
    pub(crate) fn elsewhere(&self, claim: &'a ResourceClaim) -> Option<String> {
        let alone = Self {
            claims: std::slice::from_ref(claim),
            ..*self
        };
        if alone.allocations_are_usable() != Ok(false) {
            return None;
        }
        let results = &allocation_of(claim)?.devices.results;
        let first = results.iter().take(MAX_NAMED_DEVICES);
        let names: Vec<String> = first.map(|one| DeviceId::of(one).to_string()).collect();
        let more = match results.len().saturating_sub(MAX_NAMED_DEVICES) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Some(format!(
            "is allocated on another node: {}{more}",
            names.join(", ")
        ))
    }

    /// Whether the existing allocations of the claims can be used on the node.
    pub(crate) fn allocations_are_usable(&self) -> Result<bool, Error> {
        let mut reach = true;
        for claim in self.claims {
            let selector = allocation_of(claim).and_then(|found| found.node_selector.as_ref());
            if let Some(selector) = selector {
                reach &= node_selector::matches(selector, self.node).map_err(|message| {
                    Error::NodeSelector {
                        place: format!("claim {}", claim_name(claim)),
                        message,
                    }
                })?;
            }
        }
        Ok(reach)
    }
}

pub(crate) fn allocation_of(claim: &ResourceClaim) -> Option<&AllocationResult> {
    claim.status.as_ref()?.allocation.as_ref()
}

/// The error for a pool that is invalid or not evaluated. Its devices might fit, so "does not fit" would be wrong.
fn unknown_pool(candidate_set: &CandidateSet<'_>) -> Option<Error> {
    candidate_set
        .pools
        .iter()
        .find_map(|pool| match &pool.state {
            PoolState::Invalid(reason) => Some(Error::InvalidPool {
                pool: pool.label(),
                reason: reason.clone(),
            }),
            PoolState::NotEvaluated => Some(Error::NotEvaluated {
                pool: pool.label(),
                problem: pool.state.problem().unwrap_or_default(),
            }),
            PoolState::Usable | PoolState::Incomplete { .. } => None,
        })
}
