//! The plan of a search: checks every request, resolves its class, and counts "all devices".

use dra_api::{DeviceClass, DeviceRequest, Node, ResourceClaim};

use crate::capacity;
use crate::constraints::Constraint;
use crate::error::Error;
use crate::gates::{Gates, OPTIONAL_NODE_OPERATIONS};
use crate::node::{device_is_usable_on, has_per_device_node_selection};
use crate::pools::{Candidate, Pool, PoolState, candidates};
use crate::programs::Programs;
use crate::query::Deadline;
use crate::request::{Request, claim_name};
use crate::selectors::{SelectorResult, Selectors};

/// The API's limit of devices in the allocation of a claim.
pub(crate) const MAX_DEVICES: i64 = 32;

/// Classes by name.
pub(crate) type Classes<'a> = std::collections::HashMap<&'a str, &'a DeviceClass>;

/// A request or a subrequest that can be allocated.
#[derive(Debug)]
pub(crate) struct Task<'a> {
    pub(crate) request: Request<'a>,
    pub(crate) class: &'a DeviceClass,
    /// The number of devices; 0 and negative numbers request none.
    pub(crate) count: i64,
    /// The devices of the mode "All", as candidate indexes.
    pub(crate) all: Option<Vec<usize>>,
    /// The index of this task in caches.
    pub(crate) key: usize,
}

/// A request: one task, or alternatives. The first alternative that fits is allocated.
#[derive(Debug)]
pub(crate) enum Choice<'a> {
    One(Box<Task<'a>>),
    First(Vec<Task<'a>>),
}

impl<'a> Choice<'a> {
    pub(crate) fn task(&self, alternative: usize) -> Option<&Task<'a>> {
        match self {
            Self::One(task) => (alternative == 0).then_some(task),
            Self::First(tasks) => tasks.get(alternative),
        }
    }

    /// The task, or every alternative.
    pub(crate) fn tasks(&self) -> &[Task<'a>] {
        match self {
            Self::One(task) => std::slice::from_ref(task),
            Self::First(tasks) => tasks,
        }
    }
}

/// A claim to allocate.
#[derive(Debug)]
pub(crate) struct PlannedClaim<'a> {
    pub(crate) claim: &'a ResourceClaim,
    pub(crate) choices: Vec<Choice<'a>>,
}

/// The candidates of a search, and the cached results of selectors.
#[derive(Debug)]
pub(crate) struct CandidateSet<'a> {
    pub(crate) node: &'a Node,
    pub(crate) pools: Vec<Pool<'a>>,
    pub(crate) candidates: Vec<Candidate<'a>>,
    pub(crate) gates: Gates,
    pub(crate) selectors: Selectors<'a>,
    known: Vec<Vec<Option<bool>>>,
}

impl<'a> CandidateSet<'a> {
    pub(crate) fn new(
        node: &'a Node,
        pools: Vec<Pool<'a>>,
        gates: Gates,
        programs: &'a Programs,
        deadline: Deadline,
    ) -> Self {
        Self {
            node,
            candidates: candidates(&pools),
            pools,
            gates,
            selectors: Selectors::new(programs, deadline),
            known: Vec::new(),
        }
    }

    /// Whether the node can leave out the operations that the device's slice skips. kube-scheduler ignores the field if no
    /// gate selects the experimental variant of its allocator (k8s.io/dynamic-resource-allocation v0.37.1,
    /// structured/internal/experimental/allocator_experimental.go, allocateDevice).
    pub(crate) fn operations_are_skippable(&self, candidate: &Candidate<'_>) -> bool {
        let declares = |features: &[String]| {
            features
                .iter()
                .any(|feature| feature == OPTIONAL_NODE_OPERATIONS)
        };
        candidate.slice.spec.skip_node_operations.is_empty()
            || !self.gates.any()
            || self.gates.optional_node_operations && declares(&self.node.status.declared_features)
    }

    /// The names of the capacity of a candidate.
    pub(crate) fn capacity_names<'b>(&self, candidate: &Candidate<'b>) -> capacity::Names<'b> {
        capacity::Names::new(&candidate.slice.spec.driver, self.gates)
    }

    /// Whether the selectors of class and request match, and the device can be used on the node. The order matters: a
    /// selector that fails on a device of another node is an error too.
    pub(crate) fn selects(
        &mut self,
        claim: &ResourceClaim,
        task: &Task<'a>,
        index: usize,
    ) -> Result<bool, Error> {
        if let Some(known) = self.known[task.key][index] {
            return Ok(known);
        }
        let matches = self.evaluate(claim, task, index)?;
        self.known[task.key][index] = Some(matches);
        Ok(matches)
    }

    fn evaluate(
        &mut self,
        claim: &ResourceClaim,
        task: &Task<'a>,
        index: usize,
    ) -> Result<bool, Error> {
        let candidate = self.candidates[index];
        let result = self
            .selectors
            .evaluate_all(&task.class.spec.selectors, index, &candidate)
            .map_err(|failure| {
                failure.into_error(format!("class {}", task.class.metadata.name), &candidate)
            })?;
        if result != SelectorResult::Matches {
            return Ok(false);
        }
        let result = self
            .selectors
            .evaluate_all(task.request.selectors, index, &candidate)
            .map_err(|failure| {
                let owner = format!(
                    "claim {}, request {}",
                    claim_name(claim),
                    task.request.name()
                );
                failure.into_error(owner, &candidate)
            })?;
        if result != SelectorResult::Matches {
            return Ok(false);
        }
        if has_per_device_node_selection(candidate.slice) {
            return device_is_usable_on(candidate.slice, candidate.device, self.node);
        }
        Ok(true)
    }

    /// The number of tasks. Keys are less than it.
    pub(crate) fn tasks(&self) -> usize {
        self.known.len()
    }

    fn new_key(&mut self) -> usize {
        self.known.push(vec![None; self.candidates.len()]);
        self.known.len() - 1
    }
}

/// Checks a claim and its requests in their order.
pub(crate) fn plan_claim<'a>(
    claim: &'a ResourceClaim,
    classes: &Classes<'a>,
    candidate_set: &mut CandidateSet<'a>,
) -> Result<PlannedClaim<'a>, Error> {
    let mut choices = Vec::new();
    let mut minimum = 0_i64;
    for request in &claim.spec.devices.requests {
        let choice = plan_request(claim, request, classes, candidate_set)?;
        let expected = match &choice {
            Choice::One(task) => task.count,
            Choice::First(tasks) => tasks.iter().map(|task| task.count).min().unwrap_or(0),
        };
        if expected > MAX_DEVICES.wrapping_sub(minimum) {
            return Err(Error::request(
                &claim_name(claim),
                &request.name,
                format!(
                    "{expected} devices and at least {minimum} of the earlier requests exceed the limit of {MAX_DEVICES} devices for one claim"
                ),
            ));
        }
        minimum = minimum.wrapping_add(expected);
        choices.push(choice);
    }
    if minimum < 0 {
        return Err(Error::request(
            &claim_name(claim),
            "(all)",
            "the number of requested devices is negative",
        ));
    }
    for (index, spec) in claim.spec.devices.constraints.iter().enumerate() {
        if Constraint::new(spec, candidate_set.gates).is_none() {
            return Err(Error::Constraint {
                claim: claim_name(claim),
                index,
            });
        }
    }
    Ok(PlannedClaim { claim, choices })
}

/// Plans one request, or its alternatives.
pub(crate) fn plan_request<'a>(
    claim: &'a ResourceClaim,
    request: &'a DeviceRequest,
    classes: &Classes<'a>,
    candidate_set: &mut CandidateSet<'a>,
) -> Result<Choice<'a>, Error> {
    if !request.first_available.is_empty() {
        let tasks = request
            .first_available
            .iter()
            .map(|sub| {
                plan_task(
                    claim,
                    Request::alternative(request, sub),
                    classes,
                    candidate_set,
                )
            })
            .collect::<Result<_, _>>()?;
        return Ok(Choice::First(tasks));
    }
    let Some(exactly) = &request.exactly else {
        return Err(Error::request(
            &claim_name(claim),
            &request.name,
            "neither exactly nor firstAvailable is set",
        ));
    };
    plan_task(
        claim,
        Request::exact(request, exactly),
        classes,
        candidate_set,
    )
    .map(|task| Choice::One(Box::new(task)))
}

/// Resolves the class and checks the request. `plan_task` adds the devices of the mode "All".
pub(crate) fn new_task<'a>(
    claim: &ResourceClaim,
    request: Request<'a>,
    classes: &Classes<'a>,
    candidate_set: &mut CandidateSet<'a>,
) -> Result<Task<'a>, Error> {
    let fail = |message: String| Error::request(&claim_name(claim), &request.name(), message);
    if request.derived_attributes {
        return Err(fail(
            "derivedAttributes (feature gate DRADerivedAttributes) are not supported".to_owned(),
        ));
    }
    if let Some(index) = request
        .selectors
        .iter()
        .position(|selector| selector.cel.is_none())
    {
        return Err(fail(format!(
            "selector {index} has no CEL expression; no other selector is supported"
        )));
    }
    if request.class.is_empty() {
        return Err(fail("deviceClassName is missing".to_owned()));
    }
    let Some(class) = classes.get(request.class).copied() else {
        return Err(Error::UnknownClass {
            claim: claim_name(claim),
            request: request.name(),
            class: request.class.to_owned(),
        });
    };
    // Defaults of the API server for an empty mode and a count of 0.
    let (count, all) = match request.mode {
        "" | dra_api::EXACT_COUNT => (if request.count == 0 { 1 } else { request.count }, None),
        dra_api::ALL => (0, Some(Vec::new())),
        mode => return Err(fail(format!("unknown allocationMode {mode:?}"))),
    };
    Ok(Task {
        request,
        class,
        count,
        all,
        key: candidate_set.new_key(),
    })
}

fn plan_task<'a>(
    claim: &ResourceClaim,
    request: Request<'a>,
    classes: &Classes<'a>,
    candidate_set: &mut CandidateSet<'a>,
) -> Result<Task<'a>, Error> {
    let mut task = new_task(claim, request, classes, candidate_set)?;
    if task.all.is_some() {
        let all = all_devices(claim, &task, candidate_set)?;
        task.count = i64::try_from(all.len()).unwrap_or(i64::MAX);
        task.all = Some(all);
    }
    Ok(task)
}

/// All matching devices, in use or not. A pool that is not usable is an error.
fn all_devices<'a>(
    claim: &ResourceClaim,
    task: &Task<'a>,
    candidate_set: &mut CandidateSet<'a>,
) -> Result<Vec<usize>, Error> {
    let fail = |message: String| Error::request(&claim_name(claim), &task.request.name(), message);
    let mut all = Vec::new();
    let mut next = 0;
    for pool in 0..candidate_set.pools.len() {
        let label = candidate_set.pools[pool].label();
        let state = &candidate_set.pools[pool].state;
        if let Some(problem) = state.problem() {
            if *state == PoolState::NotEvaluated {
                return Err(Error::NotEvaluated {
                    pool: label,
                    problem,
                });
            }
            return Err(Error::UnusablePool {
                claim: claim_name(claim),
                request: task.request.name(),
                pool: label,
                problem,
            });
        }
        while next < candidate_set.candidates.len() && candidate_set.candidates[next].pool == pool {
            let index = next;
            next += 1;
            if !candidate_set.selects(claim, task, index)? {
                continue;
            }
            let candidate = candidate_set.candidates[index];
            let shortfall = capacity::shortfall(
                task.request.capacity,
                candidate.device,
                candidate_set.capacity_names(&candidate),
                None,
                None,
            )
            .map_err(|message| fail(format!("device {}: {message}", candidate.id())))?;
            if shortfall.is_none() {
                all.push(index);
            }
        }
    }
    Ok(all)
}
