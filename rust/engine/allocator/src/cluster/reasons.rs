//! The reason why claims do not fit on a node, in one sentence and without the cost of a complete explanation.

use dra_api::ResourceClaim;
use serde::Serialize;

use crate::capacity;
use crate::constraints::{Constraint, look_up};
use crate::counters::Counters;
use crate::error::Error;
use crate::explain::parts;
use crate::in_use::InUse;
use crate::plan::{CandidateSet, Task, new_task};
use crate::query::{ResolvedQuery, allocation_of};
use crate::request::{Request, claim_name};
use crate::taints;

/// What limits claims on a node, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// No slice has devices for the node.
    NoDevices,
    /// No device matches class and selectors.
    NoMatch,
    /// Fewer devices match than are requested.
    TooFew,
    /// Other claims hold matching devices.
    InUse,
    /// The copies that were placed before have the devices.
    Placed,
    Counter,
    /// The slice has skipNodeOperations, which the node does not support.
    NodeOperations,
    Taint,
    /// The capacity that is left of devices.
    Capacity,
    /// A constraint of the claim, such as the same NUMA node.
    Constraint,
    /// The requests need the same devices, counters or capacity.
    Combination,
    /// A pool is incomplete or invalid.
    Pool,
    /// A pool is not evaluated.
    NotEvaluated,
    /// A claim of the query is allocated on other nodes.
    AllocatedElsewhere,
    /// kube-scheduler would report an error.
    Error,
}

/// Why claims do not fit.
#[derive(Debug)]
pub(super) struct Reason {
    pub(super) text: String,
    /// Those that concern the most devices first.
    pub(super) causes: Vec<Cause>,
}

impl Reason {
    fn new(text: String, cause: Cause) -> Self {
        Self {
            text,
            causes: vec![cause],
        }
    }
}

/// The devices that match a request, by the first reason against each.
#[derive(Debug, Default)]
struct Tally {
    matching: usize,
    available: usize,
    in_use: usize,
    placed: usize,
    tainted: usize,
    without_operations: usize,
    without_counters: usize,
    without_capacity: usize,
    without_attribute: usize,
}

/// The first request that does not fit individually; otherwise the requests do not fit in combination.
pub(super) fn reason(query: &ResolvedQuery<'_>) -> Result<Reason, Error> {
    if !query.allocations_are_usable()? {
        return Ok(Reason::new(
            allocated_elsewhere(query),
            Cause::AllocatedElsewhere,
        ));
    }
    let in_use = query.in_use();
    let mut candidate_set = query.candidate_set()?;
    if candidate_set.pools.is_empty() {
        let text = "no devices are published for it".to_owned();
        return Ok(Reason::new(text, Cause::NoDevices));
    }
    for claim in query.claims {
        if allocation_of(claim).is_some() {
            continue;
        }
        for request in &claim.spec.devices.requests {
            let mut shortages = Vec::new();
            let parts = parts(request);
            let alternatives = parts.len();
            for (part, _) in parts {
                let shortage = shortage(query, claim, part, &mut candidate_set, &in_use)?;
                shortages.extend(shortage);
            }
            if alternatives > 0 && shortages.len() == alternatives {
                let texts: Vec<&str> = shortages.iter().map(|one| one.text.as_str()).collect();
                let mut text = format!("claim {}, {}", claim_name(claim), texts.join("; "));
                let mut causes: Vec<Cause> = Vec::new();
                for cause in shortages.iter().flat_map(|shortage| &shortage.causes) {
                    if !causes.contains(cause) {
                        causes.push(*cause);
                    }
                }
                if let Some(unusable) = unusable_pool(&candidate_set) {
                    text += &unusable;
                    causes.push(Cause::Pool);
                }
                return Ok(Reason { text, causes });
            }
        }
    }
    Ok(Reason::new(
        "every request has enough devices individually, but not in combination: they share devices, counters, capacity or a constraint"
            .to_owned(),
        Cause::Combination,
    ))
}

/// The constraints without which the claims fit: those that matter one by one, or else all of them.
pub(super) fn constraint(query: &ResolvedQuery<'_>) -> Result<Option<Reason>, Error> {
    let mut names: Vec<String> = Vec::new();
    for constraint in query
        .claims
        .iter()
        .flat_map(|claim| Constraint::of_claim(claim, query.gates))
    {
        let name = name_of(&constraint);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() || !fits_without(query, &names)? {
        return Ok(None);
    }
    if names.len() > 1 {
        let mut decisive = Vec::new();
        for name in &names {
            if fits_without(query, std::slice::from_ref(name))? {
                decisive.push(name.clone());
            }
        }
        if !decisive.is_empty() {
            names = decisive;
        }
    }
    let text = format!(
        "enough devices are available, but none in a combination with the {}",
        names.join(" and the ")
    );
    Ok(Some(Reason::new(text, Cause::Constraint)))
}

fn name_of(constraint: &Constraint<'_>) -> String {
    let kind = if constraint.distinct {
        "distinct"
    } else {
        "same"
    };
    format!("{kind} {}", constraint.attribute)
}

fn fits_without(query: &ResolvedQuery<'_>, names: &[String]) -> Result<bool, Error> {
    let mut claims = query.claims.to_vec();
    for claim in &mut claims {
        claim.spec.devices.constraints.retain(|spec| {
            Constraint::new(spec, query.gates)
                .is_none_or(|constraint| !names.contains(&name_of(&constraint)))
        });
    }
    let relaxed = ResolvedQuery {
        claims: &claims,
        ..*query
    };
    Ok(relaxed.allocate()?.is_some())
}

fn allocated_elsewhere(query: &ResolvedQuery<'_>) -> String {
    let mut claims = query.claims.iter();
    let found = claims.find_map(|claim| Some((claim_name(claim), query.elsewhere(claim)?)));
    let (name, place) = found.unwrap_or_default();
    format!("claim {name} {place}")
}

fn unusable_pool(candidate_set: &CandidateSet<'_>) -> Option<String> {
    candidate_set
        .pools
        .iter()
        .find_map(|pool| Some(format!("; pool {} {}", pool.label(), pool.state.problem()?)))
}

/// Why there are not enough devices for the request, if so.
fn shortage<'a>(
    query: &ResolvedQuery<'a>,
    claim: &'a ResourceClaim,
    request: Request<'a>,
    candidate_set: &mut CandidateSet<'a>,
    in_use: &InUse<'a>,
) -> Result<Option<Reason>, Error> {
    let name = request.name();
    let task = new_task(claim, request, query.classes, candidate_set)?;
    let tally = tally(query, claim, &task, candidate_set, in_use)?;
    let needed = match &task.all {
        Some(_) => tally.matching.max(1),
        None => usize::try_from(task.count).unwrap_or(0),
    };
    if tally.available >= needed {
        return Ok(None);
    }
    if tally.matching == 0 {
        let text = format!(
            "request {name}: none of {} devices matches class {} and the selectors",
            candidate_set.candidates.len(),
            task.request.class
        );
        return Ok(Some(Reason::new(text, Cause::NoMatch)));
    }
    Ok(Some(Reason {
        text: format!(
            "request {name} needs {needed} of {} matching devices, {} available{}",
            tally.matching,
            if tally.available == 1 {
                "1 is".to_owned()
            } else {
                format!("{} are", tally.available)
            },
            tally.text()
        ),
        causes: tally.causes(),
    }))
}

fn tally<'a>(
    query: &ResolvedQuery<'a>,
    claim: &'a ResourceClaim,
    task: &Task<'a>,
    candidate_set: &mut CandidateSet<'a>,
    in_use: &InUse<'a>,
) -> Result<Tally, Error> {
    let constraints = Constraint::of_request(claim, &task.request, query.gates);
    let mut tally = Tally::default();
    let mut counters: Vec<Option<Counters<'a>>> =
        candidate_set.pools.iter().map(|_| None).collect();
    for index in 0..candidate_set.candidates.len() {
        if !candidate_set.selects(claim, task, index)? {
            continue;
        }
        let candidate = candidate_set.candidates[index];
        let device = candidate.device;
        let used = in_use.of(candidate.id());
        let names = candidate_set.capacity_names(&candidate);
        let has_capacity = |allocated| {
            let request = task.request.capacity;
            let shortfall = capacity::shortfall(request, device, names, allocated, None);
            shortfall.is_ok_and(|shortfall| shortfall.is_none())
        };
        if task.all.is_some() && !has_capacity(None) {
            continue;
        }
        tally.matching += 1;
        let has_share = candidate.shared() && used.is_some_and(|used| used.shared);
        let mut lacks_counters = false;
        if !has_share && !device.consumes_counters.is_empty() {
            let pool = &candidate_set.pools[candidate.pool];
            let counters =
                counters[candidate.pool].get_or_insert_with(|| Counters::new(pool, in_use));
            if counters.consume(device) {
                counters.release(device);
            } else {
                lacks_counters = true;
            }
        }
        let lacks_attribute = constraints
            .iter()
            .any(|constraint| look_up(device, candidate.id(), constraint.attribute).is_none());
        let count = if !task.request.admin_access && used.is_some_and(|used| used.whole) {
            let held = query.held.and_then(|held| held.of(candidate.id()));
            if query.placed.is_some() && !held.is_some_and(|used| used.whole) {
                &mut tally.placed
            } else {
                &mut tally.in_use
            }
        } else if !candidate_set.operations_are_skippable(&candidate) {
            &mut tally.without_operations
        } else if lacks_counters {
            &mut tally.without_counters
        } else if taints::not_tolerated(device, task.request.tolerations).is_some() {
            &mut tally.tainted
        } else if lacks_attribute {
            &mut tally.without_attribute
        } else if !has_capacity(used.and_then(|used| used.capacity.as_ref())) {
            &mut tally.without_capacity
        } else {
            &mut tally.available
        };
        *count += 1;
    }
    Ok(tally)
}

impl Tally {
    fn counts(&self) -> [(usize, &'static str, Cause); 7] {
        [
            (self.placed, "used by these copies", Cause::Placed),
            (self.in_use, "in use", Cause::InUse),
            (
                self.without_operations,
                "not usable with skipNodeOperations on this node",
                Cause::NodeOperations,
            ),
            (
                self.without_counters,
                "without enough of a shared counter",
                Cause::Counter,
            ),
            (
                self.tainted,
                "with a taint that is not tolerated",
                Cause::Taint,
            ),
            (
                self.without_attribute,
                "without an attribute that a constraint compares",
                Cause::Constraint,
            ),
            (
                self.without_capacity,
                "without enough capacity",
                Cause::Capacity,
            ),
        ]
    }

    fn text(&self) -> String {
        let counts = self.counts();
        let counts: Vec<String> = counts
            .iter()
            .filter(|(count, ..)| *count > 0)
            .map(|(count, why, _)| format!("{count} {why}"))
            .collect();
        if counts.is_empty() {
            String::new()
        } else {
            format!(": {}", counts.join(", "))
        }
    }

    fn causes(&self) -> Vec<Cause> {
        let mut counts: Vec<_> = self
            .counts()
            .into_iter()
            .filter(|(count, ..)| *count > 0)
            .collect();
        counts.sort_by_key(|(count, ..)| std::cmp::Reverse(*count));
        let causes: Vec<Cause> = counts.into_iter().map(|(.., cause)| cause).collect();
        if causes.is_empty() {
            vec![Cause::TooFew]
        } else {
            causes
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::{Cause, constraint};
    use crate::cluster::{Cluster, Options};
    use crate::error::Error;
    use crate::query::ResolvedQuery;

    /// Three devices of one NUMA node and one model are requested, and there are only two of each. A search for either
    /// has enough steps to read the clock.
    #[test]
    fn attempts_without_constraints_share_the_deadline_of_the_query()
    -> Result<(), Box<dyn std::error::Error>> {
        let devices: Vec<Value> = (0..40)
            .map(|n| json!({"name": format!("d{n}"), "attributes": {"numa": {"int": n / 2}, "model": {"int": n % 20}}}))
            .collect();
        let spec = json!({"driver": "gpu.example.com", "nodeName": "n1", "devices": devices,
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}});
        let request = json!({"name": "r", "exactly": {"deviceClassName": "any", "count": 3}});
        let same =
            |name| json!({"requests": ["r"], "matchAttribute": format!("gpu.example.com/{name}")});
        let claim = json!({"metadata": {"name": "c", "namespace": "ns"},
            "spec": {"devices": {"requests": [request], "constraints": [same("numa"), same("model")]}}});
        let class = json!({"metadata": {"name": "any"}, "spec": {}});
        let cluster = Cluster::default();
        cluster.update_classes(&serde_json::to_vec(&class)?)?;
        let slice = json!({"metadata": {"name": "s"}, "spec": spec});
        cluster.update_slices(&serde_json::to_vec(&slice)?, true)?;
        cluster.with_query(
            "n1",
            &serde_json::to_vec(&claim)?,
            Options::default(),
            |query| {
                let found = constraint(&query).map(|found| found.map(|reason| reason.causes));
                assert_eq!(found, Ok(Some(vec![Cause::Constraint])));

                let late = ResolvedQuery {
                    deadline: query.deadline.capped(Duration::ZERO),
                    ..query
                };
                let is_late = |error: Error| matches!(error, Error::Deadline { .. });
                assert!(late.allocate().is_err_and(is_late));
                assert!(constraint(&late).is_err_and(is_late));
            },
        )?;
        Ok(())
    }
}
