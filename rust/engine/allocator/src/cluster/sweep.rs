//! The same claims on many nodes, within one deadline.
//!
//! Nodes are examined in rounds. A node whose search takes long is examined again after all others, with a fair share of
//! the remaining time, so it does not keep the others from being examined.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dra_api::Node;
use serde::Serialize;

use super::reasons::reason;
use crate::error::Error;
use crate::query::{Limits, ResolvedQuery};

/// The least time for a node in one round. Almost all searches take far less than a millisecond.
pub(super) const MIN_SHARE: Duration = Duration::from_millis(100);
const MAX_THREADS: usize = 8;
/// Nodes for which another thread is worth its start.
const NODES_PER_THREAD: usize = 64;

/// Most nodes have few devices, so the facts for pruning cost less than many failed attempts.
pub(super) const ATTEMPTS_BEFORE_PRUNING: u64 = 32;

/// On which nodes the claims fit. Every node is in one of the members.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Sweep {
    /// By name.
    pub fits: Vec<String>,
    /// By node: why the claims do not fit.
    pub reasons: BTreeMap<String, String>,
    /// By node: the error that kube-scheduler would report.
    pub errors: BTreeMap<String, String>,
    /// The nodes of `errors` with an error at which kube-scheduler places the pod on no node, by name.
    pub fatal: Vec<String>,
    /// The nodes without a result at the deadline, by name.
    pub unexamined: Vec<String>,
}

/// The result of one node.
enum Outcome {
    Fits,
    DoesNotFit(String),
    Fails {
        error: String,
        ends_attempt: bool,
    },
    /// The node's share of the time ended.
    TimedOut,
}

/// Examines the nodes, which are ordered by name.
pub(super) fn run<'a>(
    nodes: &'a [Arc<Node>],
    limits: Limits,
    query: impl Fn(&'a Node) -> ResolvedQuery<'a> + Sync,
) -> Sweep {
    let deadline = limits.deadline(Instant::now());
    let outcomes: Vec<Mutex<Outcome>> = nodes
        .iter()
        .map(|_| Mutex::new(Outcome::TimedOut))
        .collect();
    let mut pending: Vec<usize> = (0..nodes.len()).collect();
    while !pending.is_empty() && deadline.check().is_ok() {
        let share = deadline.share_of(pending.len()).max(MIN_SHARE);
        each(&pending, |index| {
            if deadline.check().is_err() {
                return;
            }
            let outcome = examine(&ResolvedQuery {
                limits: Limits {
                    attempts_before_pruning: ATTEMPTS_BEFORE_PRUNING,
                    ..limits
                },
                deadline: deadline.capped(share),
                ..query(&nodes[index])
            });
            *outcomes[index]
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = outcome;
        });
        pending.retain(|index| {
            let outcome = outcomes[*index].lock();
            matches!(
                *outcome.unwrap_or_else(PoisonError::into_inner),
                Outcome::TimedOut
            )
        });
    }
    let mut sweep = Sweep::default();
    for (node, outcome) in nodes.iter().zip(outcomes) {
        let name = node.metadata.name.clone();
        match outcome.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Outcome::Fits => sweep.fits.push(name),
            Outcome::DoesNotFit(reason) => {
                sweep.reasons.insert(name, reason);
            }
            Outcome::Fails {
                error,
                ends_attempt,
            } => {
                if ends_attempt {
                    sweep.fatal.push(name.clone());
                }
                sweep.errors.insert(name, error);
            }
            Outcome::TimedOut => sweep.unexamined.push(name),
        }
    }
    sweep
}

/// Calls `work` with each index, on several threads if there are many.
pub(super) fn each(indices: &[usize], work: impl Fn(usize) + Sync) {
    let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = cpus
        .min(MAX_THREADS)
        .min(indices.len().div_ceil(NODES_PER_THREAD));
    let next = AtomicUsize::new(0);
    let take = || {
        while let Some(index) = indices.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(*index);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Without another thread, this one does all the work.
            let _ = std::thread::Builder::new().spawn_scoped(scope, take);
        }
        take();
    });
}

fn examine(query: &ResolvedQuery<'_>) -> Outcome {
    match query.allocate() {
        Ok(Some(_)) => Outcome::Fits,
        Ok(None) => match reason(query) {
            Ok(reason) => Outcome::DoesNotFit(reason.text),
            Err(Error::Deadline { .. }) => Outcome::TimedOut,
            // The search does not check devices in use, and requests after the first one without devices. An error there
            // does not change its result.
            Err(error) => Outcome::DoesNotFit(error.to_string()),
        },
        Err(Error::Deadline { .. }) => Outcome::TimedOut,
        Err(error) => Outcome::Fails {
            ends_attempt: error.ends_attempt(query.gates.minor),
            error: error.to_string(),
        },
    }
}
