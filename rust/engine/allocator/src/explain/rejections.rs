//! The reasons against one device for one request.

use dra_api::DeviceSelector;

use super::counters::PoolCounters;
use super::report::{DeviceReport, Rejection};
use super::{Evaluation, hint};
use crate::capacity::{self, Names, Shortfall};
use crate::constraints::{Constraint, look_up};
use crate::gates::{Gates, OPTIONAL_NODE_OPERATIONS};
use crate::in_use::{Holder, Use};
use crate::node::{device_is_usable_on, has_per_device_node_selection};
use crate::plan::{CandidateSet, Task};
use crate::pools::{Candidate, Pool};
use crate::selectors::{Failure, SelectorResult};
use crate::value_set::ValueSet;

impl<'a> Evaluation<'_, 'a> {
    /// All reasons against the device, individually.
    pub(super) fn evaluate_device(
        &mut self,
        task: &Task<'a>,
        index: usize,
        constraints: &[Constraint<'a>],
    ) -> DeviceReport {
        let candidate = self.candidate_set.candidates[index];
        let mut rejections = selectors(task, index, &candidate, &mut self.candidate_set);
        rejections.extend(node(&candidate, &self.candidate_set));
        // "All" includes devices with enough total capacity, in use or not.
        let in_all = task.all.is_none() || self.capacity(task, &candidate, None).is_none();
        let matches = rejections.is_empty() && in_all;
        let used = self.in_use.of(candidate.id());
        rejections.extend(holders(task, used));
        // "All" includes devices whose node operations cannot be skipped, and then does not fit.
        rejections.extend(operations(&candidate, &self.candidate_set));
        rejections.extend(taint(task, &candidate));
        rejections.extend(self.counters(&candidate, used));
        rejections.extend(self.capacity(task, &candidate, used));
        let gates = self.candidate_set.gates;
        rejections.extend(missing_attributes(&candidate, constraints, gates));
        let id = candidate.id();
        DeviceReport {
            driver: id.driver.to_owned(),
            pool: id.pool.to_owned(),
            device: id.device.to_owned(),
            matches,
            accepted: rejections.is_empty(),
            allocated: false,
            rejections,
            holders: used.map(|used| used.holders.clone()).unwrap_or_default(),
            candidate: Some(index),
        }
    }

    fn counters(&mut self, candidate: &Candidate<'a>, used: Option<&Use>) -> Vec<Rejection> {
        let counters_consumed = candidate.shared() && used.is_some_and(|used| used.shared);
        if counters_consumed || candidate.device.consumes_counters.is_empty() {
            return Vec::new();
        }
        let pool = &self.candidate_set.pools[candidate.pool];
        self.counters[candidate.pool]
            .get_or_insert_with(|| PoolCounters::new(pool, self.in_use))
            .rejections(candidate.device)
    }
}

/// The reports of the devices of an unusable pool.
pub(super) fn unusable_devices(pool: &Pool<'_>) -> Vec<DeviceReport> {
    let Some(message) = super::problem(pool) else {
        return Vec::new();
    };
    pool.found
        .iter()
        .flat_map(|slice| &slice.spec.devices)
        .map(|device| DeviceReport {
            driver: pool.driver.to_owned(),
            pool: pool.name.to_owned(),
            device: device.name.clone(),
            rejections: vec![Rejection::Pool {
                message: message.clone(),
            }],
            ..DeviceReport::default()
        })
        .collect()
}

fn missing_attributes<'a>(
    candidate: &Candidate<'a>,
    constraints: &[Constraint<'a>],
    gates: Gates,
) -> impl Iterator<Item = Rejection> {
    let missing = move |attribute: &str| match look_up(candidate.device, candidate.id(), attribute)
    {
        None => Some("no attribute"),
        Some(value) if gates.list_attributes && ValueSet::of(value).is_none() => {
            Some("no value in the attribute")
        }
        Some(_) => None,
    };
    constraints.iter().filter_map(move |constraint| {
        let attribute = constraint.attribute;
        let what = missing(attribute)?;
        Some(Rejection::Constraint {
            attribute: attribute.to_owned(),
            value: None,
            message: format!("it has {what} {attribute}, which a constraint compares"),
        })
    })
}

fn selectors<'a>(
    task: &Task<'a>,
    index: usize,
    candidate: &Candidate<'a>,
    candidate_set: &mut CandidateSet<'a>,
) -> Vec<Rejection> {
    let lists: [(String, &'a [DeviceSelector]); 2] = [
        (
            format!("class {}", task.class.metadata.name),
            &task.class.spec.selectors,
        ),
        ("request".to_owned(), task.request.selectors),
    ];
    let mut rejections: Vec<Rejection> = Vec::new();
    for (owner, selectors) in lists {
        for (position, selector) in selectors.iter().enumerate() {
            let expression = selector
                .cel
                .as_ref()
                .map(|cel| cel.expression.clone())
                .unwrap_or_default();
            let single = std::slice::from_ref(selector);
            let error = match candidate_set
                .selectors
                .evaluate_all(single, index, candidate)
            {
                Ok(SelectorResult::Matches) => continue,
                Ok(SelectorResult::False(_)) => None,
                // Kubernetes stops at the first selector that is false, so the error of a later one has no effect.
                Err(_) if !rejections.is_empty() => continue,
                Err(Failure::Deadline(deadline)) => {
                    Some(format!("is not evaluated: {}", deadline.error()))
                }
                Err(Failure::Compile { message, .. }) => {
                    Some(format!("does not compile: {message}"))
                }
                Err(Failure::Evaluate { message, .. }) => {
                    let driver = candidate.id().driver;
                    let hint = hint::for_failure(&message, driver, candidate.device);
                    Some(match hint {
                        Some(hint) => format!("fails: {message} ({hint})"),
                        None => format!("fails: {message}"),
                    })
                }
            };
            let outcome = error.as_deref().unwrap_or("is false");
            rejections.push(Rejection::Selector {
                message: format!(
                    "selector {position} of {owner} {outcome}: {}",
                    expression.trim()
                ),
                owner: owner.clone(),
                index: position,
                expression,
                error,
            });
        }
    }
    rejections
}

fn node(candidate: &Candidate<'_>, candidate_set: &CandidateSet<'_>) -> Option<Rejection> {
    if !has_per_device_node_selection(candidate.slice) {
        return None;
    }
    let message = match device_is_usable_on(candidate.slice, candidate.device, candidate_set.node) {
        Ok(true) => return None,
        Ok(false) => format!(
            "it cannot be used on node {}",
            candidate_set.node.metadata.name
        ),
        Err(error) => error.to_string(),
    };
    Some(Rejection::Node { message })
}

fn operations(candidate: &Candidate<'_>, candidate_set: &CandidateSet<'_>) -> Option<Rejection> {
    if candidate_set.operations_are_skippable(candidate) {
        return None;
    }
    let operations = candidate.slice.spec.skip_node_operations.clone();
    let reason = if candidate_set.gates.optional_node_operations {
        format!(
            "node {} does not declare {OPTIONAL_NODE_OPERATIONS}",
            candidate_set.node.metadata.name
        )
    } else {
        format!("the feature gate {OPTIONAL_NODE_OPERATIONS} is off")
    };
    Some(Rejection::NodeOperations {
        message: format!(
            "its slice has skipNodeOperations ({}), and {reason}",
            operations.join(", ")
        ),
        operations,
    })
}

fn holders(task: &Task<'_>, used: Option<&Use>) -> Option<Rejection> {
    let used = used.filter(|used| used.whole && !task.request.admin_access)?;
    let holders: Vec<Holder> = used
        .holders
        .iter()
        .filter(|holder| !holder.admin_access && holder.share_id.is_none())
        .cloned()
        .collect();
    let names: Vec<&str> = holders.iter().map(|holder| holder.claim.as_str()).collect();
    Some(Rejection::InUse {
        message: format!("it is held by claim {}", names.join(", ")),
        holders,
    })
}

fn taint(task: &Task<'_>, candidate: &Candidate<'_>) -> Option<Rejection> {
    let taint = crate::taints::not_tolerated(candidate.device, task.request.tolerations)?;
    let value = if taint.value.is_empty() {
        String::new()
    } else {
        format!("={}", taint.value)
    };
    Some(Rejection::Taint {
        message: format!(
            "taint {}{value}:{} is not tolerated",
            taint.key, taint.effect
        ),
        key: taint.key.clone(),
        value: taint.value.clone(),
        effect: taint.effect.clone(),
    })
}

/// The consumption of a capacity by claim: `; claim ns/a has 4Gi, claim ns/b has 8Gi`.
fn shares(name: &str, names: Names<'_>, used: Option<&Use>) -> String {
    let parts: Vec<String> = used
        .into_iter()
        .flat_map(|used| &used.holders)
        .filter_map(|holder| {
            let amount = names.sum(&holder.consumed, name)?;
            Some(format!("claim {} has {amount}", holder.claim))
        })
        .collect();
    if parts.is_empty() {
        String::new()
    } else {
        format!("; {}", parts.join(", "))
    }
}

impl Evaluation<'_, '_> {
    fn capacity(
        &self,
        task: &Task<'_>,
        candidate: &Candidate<'_>,
        used: Option<&Use>,
    ) -> Option<Rejection> {
        let names = self.candidate_set.capacity_names(candidate);
        let consumed = used.and_then(|used| used.capacity.as_ref());
        let shortfall = capacity::shortfall(
            task.request.capacity,
            candidate.device,
            names,
            consumed,
            None,
        );
        let rejection = |name: &str, problem: &str, needed, free, message| Rejection::Capacity {
            name: name.to_owned(),
            problem: problem.to_owned(),
            needed,
            free,
            message,
        };
        Some(match shortfall {
            Ok(None) => return None,
            Ok(Some(Shortfall::Missing { name })) => rejection(
                &name,
                "missing",
                None,
                None,
                format!("it has no capacity {name}"),
            ),
            Ok(Some(Shortfall::Policy { name, amount })) => rejection(
                &name,
                "policy",
                Some(amount.to_string()),
                None,
                format!("its policy does not offer {amount} of capacity {name}"),
            ),
            Ok(Some(Shortfall::Exceeded { name, needed, free })) => rejection(
                &name,
                "exceeded",
                Some(needed.to_string()),
                Some(free.to_string()),
                format!(
                    "capacity {name} has {free} left, {needed} are needed{}",
                    shares(&name, names, used)
                ),
            ),
            Err(message) => rejection("", "error", None, None, message),
        })
    }
}
