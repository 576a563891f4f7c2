//! The query and the response of an allocation, in objects of the API.

use std::fmt;
use std::time::{Duration, Instant};

use dra_api::{AllocationResult, DeviceClass, Node, ObjectMeta, ResourceClaim};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::error::Error;
use crate::gates::Gates;
use crate::held::Held;
use crate::in_use::InUse;
use crate::node_selector;
use crate::plan::{CandidateSet, Classes, plan_claim};
use crate::pools::{self, PoolState};
use crate::programs::Programs;
use crate::published::Published;
use crate::request::claim_name;
use crate::result;
use crate::search::Search;
use crate::slices::Slices;

/// The time limit of kube-scheduler for one allocation (`filterTimeout` of the plugin DynamicResources).
const DEFAULT_DEADLINE_MS: u64 = 10_000;

/// About one millisecond of search.
const ATTEMPTS_BEFORE_PRUNING: u64 = 500;

/// The input of an allocation on one node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Query {
    pub node: NodeInput,
    #[serde(deserialize_with = "objects")]
    pub classes: Vec<DeviceClass>,
    /// Slices of other nodes are ignored.
    #[serde(deserialize_with = "objects")]
    pub slices: Vec<Published>,
    /// The claims to allocate. Claims with an allocation keep it.
    #[serde(deserialize_with = "objects")]
    pub claims: Vec<ResourceClaim>,
    /// Other claims. Their allocated devices are in use.
    #[serde(deserialize_with = "objects")]
    pub allocated: Vec<ResourceClaim>,
    /// The feature gates of kube-scheduler that are on, of those that are off by default.
    pub gates: Gates,
    #[serde(flatten)]
    pub limits: Limits,
}

/// The limits of a search, and the seed of share IDs.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default)]
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

/// Decodes a list of objects. A null in the list is an error.
fn objects<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let objects = Vec::<Option<T>>::deserialize(deserializer)?;
    let objects: Option<Vec<T>> = objects.into_iter().collect();
    objects.ok_or_else(|| serde::de::Error::custom("null where an object is expected"))
}

/// A node: its name, or the object with its labels.
#[derive(Debug, Clone, Default)]
pub struct NodeInput(pub Node);

impl<'de> Deserialize<'de> for NodeInput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor).map(Self)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a node or a Node object")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Node, E> {
        Ok(Node {
            metadata: ObjectMeta {
                name: name.to_owned(),
                ..ObjectMeta::default()
            },
            ..Node::default()
        })
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Node, E> {
        Ok(Node::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Node, A::Error> {
        Node::deserialize(MapAccessDeserializer::new(members))
    }
}

/// The result of an allocation: all claims or none. `results` has one entry for each claim, or is empty.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Response {
    pub allocated: bool,
    pub results: Vec<AllocationResult>,
    /// The error of the allocation. `None` if the claims do not fit.
    pub error: Option<String>,
}

impl From<Result<Option<Vec<AllocationResult>>, Error>> for Response {
    fn from(result: Result<Option<Vec<AllocationResult>>, Error>) -> Self {
        match result {
            Ok(Some(results)) => Self {
                allocated: true,
                results,
                error: None,
            },
            Ok(None) => Self::default(),
            Err(error) => Self {
                error: Some(error.to_string()),
                ..Self::default()
            },
        }
    }
}

/// Allocates devices as kube-scheduler does. Errors are in [`Response::error`].
pub fn allocate(query: &Query) -> Response {
    let programs = Programs::default();
    let classes = classes_by_name(&query.classes);
    query.resolve(&classes, &programs).allocate().into()
}

/// A query with everything that is computed once for several queries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResolvedQuery<'a> {
    pub(crate) node: &'a Node,
    pub(crate) classes: &'a Classes<'a>,
    pub(crate) slices: Slices<'a>,
    pub(crate) claims: &'a [ResourceClaim],
    /// Other claims. Their allocated devices are in use.
    pub(crate) allocated: &'a [ResourceClaim],
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

impl Query {
    pub(crate) fn resolve<'a>(
        &'a self,
        classes: &'a Classes<'a>,
        programs: &'a Programs,
    ) -> ResolvedQuery<'a> {
        ResolvedQuery {
            node: &self.node.0,
            classes,
            slices: Slices::List(&self.slices),
            claims: &self.claims,
            allocated: &self.allocated,
            held: None,
            placed: None,
            programs,
            gates: self.gates,
            limits: self.limits,
            deadline: self.limits.deadline(Instant::now()),
        }
    }
}

impl<'a> ResolvedQuery<'a> {
    pub(crate) fn in_use(&self) -> InUse<'a> {
        InUse::gather(
            self.held,
            self.placed,
            self.allocated.iter().chain(self.claims),
        )
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

pub(crate) fn classes_by_name(classes: &[DeviceClass]) -> Classes<'_> {
    classes
        .iter()
        .map(|class| (class.metadata.name.as_str(), class))
        .collect()
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
