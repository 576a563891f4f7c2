//! The query and the response of an allocation, in objects of the API.

use std::fmt;
use std::time::{Duration, Instant};

use dra_api::{AllocationResult, DeviceClass, Node, ObjectMeta, ResourceClaim, ResourceSlice};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::error::Error;
use crate::in_use::InUse;
use crate::node_selector;
use crate::plan::{Classes, Match, plan_claim};
use crate::pools;
use crate::request::claim_name;
use crate::result;
use crate::search::Search;

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
    pub slices: Vec<ResourceSlice>,
    /// The claims to allocate. Claims with an allocation keep it.
    #[serde(deserialize_with = "objects")]
    pub claims: Vec<ResourceClaim>,
    /// Other claims. Their allocated devices are in use.
    #[serde(deserialize_with = "objects")]
    pub allocated: Vec<ResourceClaim>,
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

/// Allocates devices as kube-scheduler does. Errors are in [`Response::error`].
pub fn allocate(query: &Query) -> Response {
    match try_allocate(query) {
        Ok(Some(results)) => Response {
            allocated: true,
            results,
            error: None,
        },
        Ok(None) => Response::default(),
        Err(error) => Response {
            error: Some(error.to_string()),
            ..Response::default()
        },
    }
}

/// The allocations, or `None` if the claims do not fit.
pub(crate) fn try_allocate(query: &Query) -> Result<Option<Vec<AllocationResult>>, Error> {
    let deadline = query.limits.deadline(Instant::now());
    let node = &query.node.0;
    let in_use = InUse::gather(query.allocated.iter().chain(&query.claims));
    let reachable = allocations_are_usable(query)?;
    let pending: Vec<&ResourceClaim> = query
        .claims
        .iter()
        .filter(|claim| allocation_of(claim).is_none())
        .collect();
    let mut found = Vec::new();
    if !pending.is_empty() {
        let classes = classes_by_name(&query.classes);
        let mut matching = Match::new(node, pools::gather(&query.slices, node)?, deadline);
        let mut planned = Vec::new();
        for claim in pending {
            planned.push(plan_claim(claim, &classes, &mut matching)?);
        }
        let search = Search::new(&mut matching, &planned, &in_use, query.limits, deadline);
        let Some(solution) = search.run()? else {
            return match invalid_pool(&matching) {
                Some(error) => Err(error),
                None => Ok(None),
            };
        };
        for (index, claim) in planned.iter().enumerate() {
            found.push(result::allocation(
                claim,
                &solution.devices[index],
                &solution.alternatives[index],
                &matching,
            )?);
        }
    }
    if !reachable {
        return Ok(None);
    }
    let mut found = found.into_iter();
    let results = query
        .claims
        .iter()
        .filter_map(|claim| allocation_of(claim).cloned().or_else(|| found.next()))
        .collect();
    Ok(Some(results))
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

/// The error for an invalid pool. Its devices might fit, so "does not fit" would be wrong.
fn invalid_pool(matching: &Match<'_>) -> Option<Error> {
    matching.pools.iter().find_map(|pool| match &pool.state {
        pools::PoolState::Invalid(reason) => Some(Error::InvalidPool {
            pool: pool.label(),
            reason: reason.clone(),
        }),
        _ => None,
    })
}

/// Whether the existing allocations of the claims can be used on the node.
fn allocations_are_usable(query: &Query) -> Result<bool, Error> {
    let mut reach = true;
    for claim in &query.claims {
        let selector = allocation_of(claim).and_then(|found| found.node_selector.as_ref());
        if let Some(selector) = selector {
            reach &= node_selector::matches(selector, &query.node.0).map_err(|message| {
                Error::NodeSelector {
                    place: format!("claim {}", claim_name(claim)),
                    message,
                }
            })?;
        }
    }
    Ok(reach)
}
