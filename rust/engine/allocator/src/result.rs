//! Converts an allocation to the API's AllocationResult with devices, configuration and node selector.

use std::collections::{BTreeMap, BTreeSet};

use dra_api::{
    AllocationResult, DeviceAllocationResult, DeviceRequestAllocationResult, DeviceToleration,
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Quantity, ResourceClaim,
};

use crate::config;
use crate::error::Error;
use crate::node::has_per_device_node_selection;
use crate::plan::{CandidateSet, PlannedClaim, Task};
use crate::request::{Request, claim_name};
use crate::search::Chosen;

/// The allocation of one claim. `alternatives` has the index of the allocated task of each request.
pub(crate) fn allocation(
    planned: &PlannedClaim<'_>,
    devices: &[Chosen],
    alternatives: &[usize],
    candidate_set: &CandidateSet<'_>,
) -> Result<AllocationResult, Error> {
    let chosen: Vec<&Task<'_>> = planned
        .choices
        .iter()
        .zip(alternatives)
        .filter_map(|(choice, alternative)| choice.task(*alternative))
        .collect();
    let results = devices
        .iter()
        .map(|device| result(planned, device, candidate_set))
        .collect::<Result<_, _>>()?;
    Ok(AllocationResult {
        devices: DeviceAllocationResult {
            results,
            config: config::collect(planned, &chosen),
        },
        node_selector: node_selector(planned, devices, candidate_set)?,
        allocation_timestamp: None,
    })
}

fn result(
    planned: &PlannedClaim<'_>,
    chosen: &Chosen,
    candidate_set: &CandidateSet<'_>,
) -> Result<DeviceRequestAllocationResult, Error> {
    let candidate = candidate_set.candidates[chosen.candidate];
    let id = candidate.id();
    let task = planned.choices[chosen.choice].task(chosen.alternative);
    let (request, tolerations, admin_access) = match task {
        Some(task) => (
            name_in_results(&task.request),
            tolerations_in_results(planned.claim, &task.request)?
                .iter()
                .map(with_operator)
                .collect(),
            task.request.admin_access,
        ),
        None => Default::default(),
    };
    Ok(DeviceRequestAllocationResult {
        request,
        driver: id.driver.to_owned(),
        pool: id.pool.to_owned(),
        device: id.device.to_owned(),
        admin_access: admin_access.then_some(true),
        tolerations,
        binding_conditions: candidate.device.binding_conditions.clone(),
        binding_failure_conditions: candidate.device.binding_failure_conditions.clone(),
        share_id: chosen.share_id.clone(),
        consumed_capacity: chosen
            .consumed
            .iter()
            .map(|(name, amount)| (name.clone(), canonical(amount)))
            .collect::<BTreeMap<_, _>>(),
        skip_node_operations: if candidate_set.gates.any() {
            candidate.slice.spec.skip_node_operations.clone()
        } else {
            Vec::new()
        },
    })
}

/// The name of the request in results. kube-scheduler names an alternative only if its request has a name.
fn name_in_results(request: &Request<'_>) -> String {
    match request.sub {
        Some(sub) if request.main.is_empty() => sub.to_owned(),
        _ => request.name(),
    }
}

/// The tolerations in results. kube-scheduler looks up requests by name, so all requests of a name get the tolerations of
/// the first one. It fails if that one is of another kind.
fn tolerations_in_results<'a>(
    claim: &'a ResourceClaim,
    request: &Request<'_>,
) -> Result<&'a [DeviceToleration], Error> {
    let requests = &claim.spec.devices.requests;
    let found = match request.sub {
        Some(sub) if !request.main.is_empty() => requests
            .iter()
            .filter(|other| other.name == request.main)
            .flat_map(|other| &other.first_available)
            .find(|other| other.name == sub)
            .map(|other| other.tolerations.as_slice()),
        sub => requests
            .iter()
            .find(|other| other.name == sub.unwrap_or(request.main))
            .and_then(|other| other.exactly.as_ref())
            .map(|exactly| exactly.tolerations.as_slice()),
    };
    found.ok_or_else(|| {
        Error::request(
            &claim_name(claim),
            &request.name(),
            "its name is empty or not unique in the claim",
        )
    })
}

/// The toleration with the API server's default operator.
fn with_operator(toleration: &DeviceToleration) -> DeviceToleration {
    let mut toleration = toleration.clone();
    if toleration.operator.is_empty() {
        toleration.operator = "Equal".to_owned();
    }
    toleration
}

/// The amount in canonical form.
fn canonical(amount: &Quantity) -> Quantity {
    Quantity::parse(&amount.to_string()).unwrap_or_else(|_| amount.clone())
}

/// The node selector of the allocation. A node-local device restricts it to the node; otherwise all requirements of the
/// devices' selectors must match.
fn node_selector(
    planned: &PlannedClaim<'_>,
    devices: &[Chosen],
    candidate_set: &CandidateSet<'_>,
) -> Result<Option<NodeSelector>, Error> {
    let mut term = NodeSelectorTerm::default();
    for chosen in devices {
        let candidate = candidate_set.candidates[chosen.candidate];
        let (slice, device) = (candidate.slice, candidate.device);
        let (name, selector) = if has_per_device_node_selection(slice) {
            (&device.node_name, &device.node_selector)
        } else {
            (&slice.spec.node_name, &slice.spec.node_selector)
        };
        if name.is_some() || device.binds_to_node.unwrap_or(false) {
            return Ok(Some(NodeSelector::of_node(
                &candidate_set.node.metadata.name,
            )));
        }
        match selector
            .as_ref()
            .map(|selector| selector.node_selector_terms.as_slice())
        {
            None | Some([]) => {}
            Some([only]) => {
                add_new(&mut term.match_fields, &only.match_fields);
                add_new(&mut term.match_expressions, &only.match_expressions);
            }
            Some(terms) => {
                return Err(Error::NodeSelector {
                    place: format!(
                        "claim {}, device {}",
                        claim_name(planned.claim),
                        candidate.id()
                    ),
                    message: format!("it has {} terms, the limit is one", terms.len()),
                });
            }
        }
    }
    let empty = term.match_fields.is_empty() && term.match_expressions.is_empty();
    Ok((!empty).then(|| NodeSelector {
        node_selector_terms: vec![term],
    }))
}

fn add_new(known: &mut Vec<NodeSelectorRequirement>, more: &[NodeSelectorRequirement]) {
    for requirement in more {
        if !known.iter().any(|other| same(other, requirement)) {
            known.push(requirement.clone());
        }
    }
}

/// Whether two requirements are equal. Values are a set: order and repetitions are ignored.
fn same(one: &NodeSelectorRequirement, other: &NodeSelectorRequirement) -> bool {
    let values = |requirement: &NodeSelectorRequirement| -> BTreeSet<String> {
        requirement.values.iter().cloned().collect()
    };
    one.key == other.key && one.operator == other.operator && values(one) == values(other)
}
