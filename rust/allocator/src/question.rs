//! A question and its answer, in the API's own objects.

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

/// What kube-scheduler allows one allocation (`filterTimeout` of the plugin DynamicResources).
const DEFAULT_DEADLINE_MS: u64 = 10_000;

/// About a millisecond of searching.
const ATTEMPTS_BEFORE_PRUNING: u64 = 500;

/// Which devices the claims would get on the node. Nothing of it is changed.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Question {
    pub node: NodeInput,
    #[serde(deserialize_with = "objects")]
    pub classes: Vec<DeviceClass>,
    /// Slices of all nodes may be there; those of other nodes are passed over.
    #[serde(deserialize_with = "objects")]
    pub slices: Vec<ResourceSlice>,
    /// Claims that are allocated already keep their allocation.
    #[serde(deserialize_with = "objects")]
    pub claims: Vec<ResourceClaim>,
    /// Other claims; those that are allocated hold their devices.
    #[serde(deserialize_with = "objects")]
    pub allocated: Vec<ResourceClaim>,
    #[serde(flatten)]
    pub limits: Limits,
}

/// What bounds an answer, and what makes it repeatable.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default)]
pub struct Limits {
    pub deadline_ms: u64,
    /// How many devices the search may try, and how often it may go on to the next one. Unlike the deadline it bounds
    /// every machine's search alike.
    pub max_steps: u64,
    /// How many attempts may fail before the search finds out what it need not try. Nearly every question is answered
    /// before, and does not wait for facts about devices that it never needs. The answer does not depend on it.
    pub attempts_before_pruning: u64,
    /// Where the IDs of shares come from: the same seed gives the same IDs.
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
    /// When what began at `started` has to end.
    pub(crate) fn deadline(&self, started: Instant) -> Deadline {
        let at = started.checked_add(Duration::from_millis(self.deadline_ms));
        Deadline {
            // A deadline beyond the end of time is none: a day is as good.
            at: at.unwrap_or(started + Duration::from_secs(86_400)),
            milliseconds: self.deadline_ms,
        }
    }
}

/// When an answer has to be there.
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

/// A null among the objects stands for none of them.
fn objects<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let given = Vec::<Option<T>>::deserialize(deserializer)?;
    let objects: Option<Vec<T>> = given.into_iter().collect();
    objects.ok_or_else(|| serde::de::Error::custom("null where an object is expected"))
}

/// A node: its name alone, or the object with its labels.
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

/// All claims or none: `results` has one entry for each claim where `allocated`, else none.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Answer {
    pub allocated: bool,
    pub results: Vec<AllocationResult>,
    /// Why there is no answer. None where the claims simply do not fit.
    pub error: Option<String>,
}

/// Answers the question as kube-scheduler would.
pub fn allocate(question: &Question) -> Answer {
    match try_allocate(question) {
        Ok(Some(results)) => Answer {
            allocated: true,
            results,
            error: None,
        },
        Ok(None) => Answer::default(),
        Err(error) => Answer {
            error: Some(error.to_string()),
            ..Answer::default()
        },
    }
}

/// None where the claims do not fit.
pub(crate) fn try_allocate(question: &Question) -> Result<Option<Vec<AllocationResult>>, Error> {
    let deadline = question.limits.deadline(Instant::now());
    let node = &question.node.0;
    let in_use = InUse::gather(question.allocated.iter().chain(&question.claims));
    let reachable = allocated_claims_reach(question)?;
    let pending: Vec<&ResourceClaim> = question
        .claims
        .iter()
        .filter(|claim| allocation_of(claim).is_none())
        .collect();
    let mut found = Vec::new();
    if !pending.is_empty() {
        let classes = classes_by_name(&question.classes);
        let mut matching = Match::new(node, pools::gather(&question.slices, node)?, deadline);
        let mut planned = Vec::new();
        for claim in pending {
            planned.push(plan_claim(claim, &classes, &mut matching)?);
        }
        let search = Search::new(&mut matching, &planned, &in_use, question.limits, deadline);
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
    let results = question
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

/// A pool that is not valid might have had what is missing, so that "does not fit" would not be the truth.
fn invalid_pool(matching: &Match<'_>) -> Option<Error> {
    matching.pools.iter().find_map(|pool| match &pool.state {
        pools::PoolState::Invalid(reason) => Some(Error::InvalidPool {
            pool: pool.label(),
            reason: reason.clone(),
        }),
        _ => None,
    })
}

/// Whether the claims that are allocated already can be used on the node.
fn allocated_claims_reach(question: &Question) -> Result<bool, Error> {
    let mut reach = true;
    for claim in &question.claims {
        let selector = allocation_of(claim).and_then(|found| found.node_selector.as_ref());
        if let Some(selector) = selector {
            reach &= node_selector::matches(selector, &question.node.0).map_err(|what| {
                Error::NodeSelector {
                    place: format!("claim {}", claim_name(claim)),
                    what,
                }
            })?;
        }
    }
    Ok(reach)
}
