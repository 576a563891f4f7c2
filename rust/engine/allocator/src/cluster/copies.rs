//! How many copies of claims fit, one after another: on each node alone, and in total.
//!
//! A copy is what one more pod would get. The copies that were placed are kept in a separate layer above the held claims,
//! so neither the cluster nor other queries see them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use dra_api::{Node, ResourceClaim, ResourceClaimStatus};
use serde::Serialize;

use super::reasons::{Cause, constraint, reason};
use super::sweep::{ATTEMPTS_BEFORE_PRUNING, MIN_SHARE, each};
use crate::error::Error;
use crate::held::Held;
use crate::node::slice_is_usable_on;
use crate::query::{Deadline, Limits, ResolvedQuery, allocation_of};
use crate::slices::SliceIndex;

/// How many copies fit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Capacity {
    /// By name.
    pub nodes: Vec<NodeCapacity>,
    /// The copies that fit together on all nodes, placed on one node after another.
    pub total: u64,
    /// `total` is a lower bound: a limit or the deadline ended the search.
    pub total_is_partial: bool,
    /// The nodes without a complete result at the deadline, by name.
    pub unexamined: Vec<String>,
}

/// How many copies fit on one node, if all are placed there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NodeCapacity {
    pub node: String,
    pub copies: u64,
    /// More copies may fit: the limit of copies ended the search.
    pub at_limit: bool,
    /// Why the next copy does not fit; empty at a limit or the deadline.
    pub reason: String,
    /// The causes of `reason`, those that concern the most devices first.
    pub causes: Vec<Cause>,
    /// `reason` is an error at which kube-scheduler places no further copy, on this node or another one.
    pub fatal: bool,
    /// Devices of the node can also be used by other nodes, so the sum over nodes may exceed the total.
    pub has_network_devices: bool,
}

/// A query for the capacity of nodes.
pub(super) struct CapacityQuery<'a, Q> {
    /// Ordered by name.
    pub(super) nodes: &'a [Arc<Node>],
    pub(super) slices: &'a SliceIndex,
    pub(super) held: Option<&'a Held>,
    /// The claims of one copy.
    pub(super) copy: &'a [ResourceClaim],
    /// The claims that all copies use.
    pub(super) shared: &'a [ResourceClaim],
    /// The maximum number of copies on a node.
    pub(super) limit: u64,
    pub(super) limits: Limits,
    /// A query without claims for a node.
    pub(super) query: Q,
}

/// The copies that are placed so far.
#[derive(Debug, Clone)]
struct Placement {
    placed: Held,
    /// The shared claims; allocated from the first copy on.
    shared: Vec<ResourceClaim>,
}

/// The state of one node.
#[derive(Debug)]
struct Progress {
    placement: Placement,
    copies: u64,
    end: Option<End>,
}

/// Why no more copies are placed.
#[derive(Debug, Clone)]
enum End {
    Full {
        reason: String,
        causes: Vec<Cause>,
        fatal: bool,
    },
    AtLimit,
}

impl<'a, Q> CapacityQuery<'a, Q>
where
    Q: Fn(&'a Node) -> ResolvedQuery<'a> + Sync,
{
    pub(super) fn run(&self) -> Capacity {
        let deadline = self.limits.deadline(Instant::now());
        let nodes: Vec<Mutex<Progress>> = self
            .nodes
            .iter()
            .map(|_| Mutex::new(self.nothing_placed()))
            .collect();
        let mut pending: Vec<usize> = (0..nodes.len()).collect();
        while !pending.is_empty() && deadline.check().is_ok() {
            let share = deadline.share_of(pending.len()).max(MIN_SHARE);
            each(&pending, |index| {
                let mut progress = lock(&nodes[index]);
                self.fill(&self.nodes[index], &mut progress, deadline.capped(share));
            });
            pending.retain(|index| lock(&nodes[*index]).end.is_none());
        }
        let found: Vec<Progress> = nodes
            .into_iter()
            .map(|node| node.into_inner().unwrap_or_else(PoisonError::into_inner))
            .collect();
        self.result(&found, deadline)
    }

    fn nothing_placed(&self) -> Progress {
        Progress {
            placement: Placement {
                placed: Held::default(),
                shared: self.shared.to_vec(),
            },
            copies: 0,
            end: None,
        }
    }

    fn result(&self, found: &[Progress], deadline: Deadline) -> Capacity {
        let mut capacity = Capacity::default();
        let mut apart = 0;
        let mut together = Vec::new();
        // Copies on one node affect those on another node through devices and shared claims that both can use.
        let is_shared = self
            .shared
            .iter()
            .any(|claim| allocation_of(claim).is_none());
        for (index, (node, progress)) in self.nodes.iter().zip(found).enumerate() {
            let has_network_devices = !self.has_own_pools_only(node);
            let mut entry = NodeCapacity {
                node: node.metadata.name.clone(),
                copies: progress.copies,
                has_network_devices,
                ..NodeCapacity::default()
            };
            match &progress.end {
                Some(End::Full {
                    reason,
                    causes,
                    fatal,
                }) => {
                    entry.reason.clone_from(reason);
                    entry.causes.clone_from(causes);
                    entry.fatal = *fatal;
                }
                Some(End::AtLimit) => entry.at_limit = true,
                None => capacity.unexamined.push(entry.node.clone()),
            }
            if is_shared || has_network_devices {
                together.push(index);
            } else {
                apart += progress.copies;
            }
            capacity.total_is_partial |= entry.at_limit
                || progress.end.is_none()
                || entry.causes.contains(&Cause::NotEvaluated);
            capacity.nodes.push(entry);
        }
        let (copies, is_complete) = self.place_together(together, found, deadline);
        capacity.total = apart + copies;
        capacity.total_is_partial |= !is_complete;
        capacity
    }

    /// Places copies on one node after another, those with the most room first. Returns how many, and whether that is all.
    fn place_together(
        &self,
        mut nodes: Vec<usize>,
        found: &[Progress],
        deadline: Deadline,
    ) -> (u64, bool) {
        nodes.sort_by_key(|index| std::cmp::Reverse(found[*index].copies));
        let mut progress = self.nothing_placed();
        let (mut total, mut is_complete) = (0, true);
        for (position, index) in nodes.iter().enumerate() {
            if self.shared.is_empty() && found[*index].copies == 0 && found[*index].end.is_some() {
                // What does not fit on an empty layer does not fit on top of other copies. Shared claims do not need
                // their devices again, so this is not true of them.
                continue;
            }
            progress.copies = 0;
            progress.end = None;
            let share = deadline.share_of(nodes.len() - position).max(MIN_SHARE);
            self.fill(&self.nodes[*index], &mut progress, deadline.capped(share));
            total += progress.copies;
            is_complete &= progress.end.is_some();
        }
        (total, is_complete)
    }

    /// Places copies on a node until one does not fit, or until the limit or the time ends.
    fn fill(&self, node: &'a Node, progress: &mut Progress, deadline: Deadline) {
        while progress.end.is_none() {
            if progress.copies >= self.limit {
                progress.end = Some(End::AtLimit);
                return;
            }
            if deadline.check().is_err() {
                return;
            }
            let Placement { placed, shared } = &mut progress.placement;
            let claims: Vec<ResourceClaim> = shared.iter().chain(self.copy).cloned().collect();
            let query = ResolvedQuery {
                claims: &claims,
                placed: Some(placed),
                limits: Limits {
                    attempts_before_pruning: ATTEMPTS_BEFORE_PRUNING,
                    ..self.limits
                },
                deadline,
                ..(self.query)(node)
            };
            let results = match query.allocate() {
                Ok(Some(results)) => results,
                Ok(None) => match no_fit_reason(&query) {
                    Ok(found) => {
                        progress.end = Some(found);
                        return;
                    }
                    Err(_) => return,
                },
                Err(Error::Deadline { .. }) => return,
                Err(error) => {
                    progress.end = Some(End::Full {
                        causes: vec![cause(&error)],
                        fatal: error.ends_attempt(query.gates.minor),
                        reason: error.to_string(),
                    });
                    return;
                }
            };
            // The shared claims are in the next query with their allocation, so their devices are in use without this.
            let own = claims.iter().zip(&results).skip(shared.len());
            for (claim, result) in own {
                placed.place(self.held, claim, result);
            }
            for (claim, result) in shared.iter_mut().zip(results) {
                if allocation_of(claim).is_none() {
                    let status = claim
                        .status
                        .get_or_insert_with(ResourceClaimStatus::default);
                    status.allocation = Some(result);
                }
            }
            progress.copies += 1;
        }
    }

    /// Whether all slices of the node's pools are of this node, so that no other node can use them.
    fn has_own_pools_only(&self, node: &Node) -> bool {
        let name = &node.metadata.name;
        self.slices.for_node(name).into_iter().all(|slice| {
            let is_of_node = |name_of: &Option<String>| name_of.as_ref() == Some(name);
            if !slice_is_usable_on(slice, node).unwrap_or(true) {
                return true;
            }
            is_of_node(&slice.spec.node_name)
                && self
                    .slices
                    .of_pool(&slice.spec.driver, &slice.spec.pool.name)
                    .iter()
                    .all(|other| is_of_node(&other.spec.node_name))
        })
    }
}

/// Why the next copy does not fit. An error means that the time ended.
fn no_fit_reason(query: &ResolvedQuery<'_>) -> Result<End, Error> {
    let full = |reason, causes| {
        Ok(End::Full {
            reason,
            causes,
            fatal: false,
        })
    };
    match reason(query) {
        Ok(found) if found.causes.contains(&Cause::Combination) => match constraint(query) {
            Ok(Some(cause)) => full(cause.text, cause.causes),
            Ok(None) | Err(_) => full(found.text, found.causes),
        },
        Ok(found) => full(found.text, found.causes),
        Err(error @ Error::Deadline { .. }) => Err(error),
        // As in a sweep: the search does not evaluate the devices on which this fails.
        Err(error) => full(error.to_string(), vec![cause(&error)]),
    }
}

fn cause(error: &Error) -> Cause {
    match error {
        Error::NotEvaluated { .. } => Cause::NotEvaluated,
        _ => Cause::Error,
    }
}

fn lock(progress: &Mutex<Progress>) -> MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}
