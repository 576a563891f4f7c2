//! Queries to the allocator. An independent check compares allocations with the claims, classes and slices.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dra_allocator::{Cluster, Gates, Limits, Options, Response};
use dra_api::{
    ALL, AllocationResult, CapacityRequirements, Device, DeviceAttribute, DeviceClass,
    DeviceRequestAllocationResult, DeviceSelector, DeviceToleration, Node, Quantity, ResourceClaim,
    ResourceSlice,
};
use dra_cel::{DeviceInput, Program};
use serde::{Deserialize, Serialize};

use crate::Target;
use crate::json::read;

pub const TARGET: Target = Target {
    name: "allocation",
    check,
    heap_bytes: 256 << 20,
    // Four runs, each within the deadline, and one more evaluation of the selectors.
    cpu: Duration::from_secs(20),
};

const DEADLINE_MS: u64 = 2_000;
const MAX_STEPS: u64 = 20_000;
const MAX_CLAIM_DEVICES: usize = 32;

type DeviceName<'a> = (&'a str, &'a str, &'a str);

/// The objects of a question, and the seed of share IDs.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Query {
    node: NodeInput,
    classes: Vec<DeviceClass>,
    slices: Vec<ResourceSlice>,
    claims: Vec<ResourceClaim>,
    allocated: Vec<ResourceClaim>,
    gates: Vec<String>,
    share_id_seed: u64,
}

/// A node: its name, or the object with its labels.
#[derive(Deserialize)]
#[serde(untagged)]
enum NodeInput {
    Name(String),
    Object(Box<Node>),
}

impl Default for NodeInput {
    fn default() -> Self {
        Self::Name(String::new())
    }
}

impl Query {
    fn node(&self) -> &str {
        match &self.node {
            NodeInput::Name(name) => name,
            NodeInput::Object(node) => &node.metadata.name,
        }
    }

    /// Gives slices the unique names of an API server, and a node a name. Drops classes and held claims without a name,
    /// and held claims that are there twice.
    fn make_named(&mut self) {
        for (number, slice) in self.slices.iter_mut().enumerate() {
            slice.metadata.name = format!("{}-{number}", slice.metadata.name);
        }
        if self.node().is_empty() {
            let name = "node".to_owned();
            match &mut self.node {
                NodeInput::Name(own) => *own = name,
                NodeInput::Object(node) => node.metadata.name = name,
            }
        }
        self.classes.retain(|class| !class.metadata.name.is_empty());
        let mut seen = BTreeSet::new();
        self.allocated
            .retain(|claim| identity(claim).is_some_and(|identity| seen.insert(identity)));
    }

    /// The cluster with these objects; `None` if a gate is not supported.
    fn cluster(&self) -> Option<Cluster> {
        let gates = Gates::named(self.gates.iter().map(String::as_str)).ok()?;
        let cluster = Cluster::with_gates(gates);
        if let NodeInput::Object(node) = &self.node {
            cluster.update_nodes(&json(node)).expect("a named node");
        }
        let classes = cluster.update_classes(&json(&self.classes));
        classes.expect("named classes");
        let slices = cluster.update_slices(&json(&self.slices), true);
        slices.expect("slices with unique names");
        let held = cluster.hold(&json(&self.allocated), true);
        held.expect("named claims");
        Some(cluster)
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("it is JSON")
}

fn identity(claim: &ResourceClaim) -> Option<(String, String)> {
    let meta = &claim.metadata;
    match (meta.uid.as_str(), meta.name.as_str()) {
        ("", "") => None,
        ("", name) => Some((meta.namespace.clone(), name.to_owned())),
        (uid, _) => Some((String::new(), uid.to_owned())),
    }
}

fn check(data: &[u8]) {
    let Some(mut query) = read::<Query>(data) else {
        return;
    };
    query.make_named();
    let Some(cluster) = query.cluster() else {
        return;
    };
    let claims = json(&query.claims);
    let options = |attempts_before_pruning| Options {
        limits: Limits {
            deadline_ms: DEADLINE_MS,
            max_steps: MAX_STEPS,
            attempts_before_pruning,
            share_id_seed: query.share_id_seed,
        },
        ignore_held: false,
    };
    let allocate = |attempts| {
        cluster
            .allocate(query.node(), &claims, options(attempts))
            .expect("the node and the claims are known")
    };
    let usual = Limits::default().attempts_before_pruning;
    let response = allocate(usual);
    if exceeded_limit(&response) {
        return;
    }
    assert!(
        response.allocated || response.results.is_empty(),
        "results of claims that do not fit"
    );
    assert!(
        !(response.allocated && response.error.is_some()),
        "allocated with error {:?}",
        response.error
    );
    let explanation = cluster
        .explain(query.node(), &claims, options(usual))
        .expect("the node and the claims are known");
    assert!(!explanation.summary.is_empty(), "no summary");
    if !explanation.error.as_deref().is_some_and(is_limit) {
        assert_eq!(explanation.fits, response.allocated, "explain and allocate");
    }
    for attempts in [0, u64::MAX] {
        let other = allocate(attempts);
        if !exceeded_limit(&other) {
            assert_eq!(
                (
                    other.allocated,
                    without_share_ids(&other.results),
                    &other.error
                ),
                (
                    response.allocated,
                    without_share_ids(&response.results),
                    &response.error
                ),
                "the result depends on the start of pruning"
            );
        }
    }
    if response.allocated {
        check_results(&query, &response.results);
    }
}

/// The results with the same ID for every share: generated IDs depend on the number of attempts.
fn without_share_ids(results: &[AllocationResult]) -> Vec<AllocationResult> {
    let mut results = results.to_vec();
    for result in results
        .iter_mut()
        .flat_map(|result| &mut result.devices.results)
    {
        if let Some(id) = &mut result.share_id {
            id.clear();
        }
    }
    results
}

fn exceeded_limit(response: &Response) -> bool {
    response.error.as_deref().is_some_and(is_limit)
}

fn is_limit(error: &str) -> bool {
    error.starts_with("no result within")
}

fn check_results(query: &Query, results: &[AllocationResult]) {
    assert_eq!(
        results.len(),
        query.claims.len(),
        "one result for each claim"
    );
    let mut held = Usage::default();
    let mut seen = BTreeSet::new();
    for claim in query.allocated.iter().chain(&query.claims) {
        if let Some(allocation) = allocation_of(claim)
            && identity(claim).is_none_or(|identity| seen.insert(identity))
        {
            for result in &allocation.devices.results {
                held.add(result);
            }
        }
    }
    let before = held.clone();
    for (claim, allocation) in query.claims.iter().zip(results) {
        if let Some(given) = allocation_of(claim) {
            assert_eq!(
                allocation, given,
                "the allocation of an allocated claim changed"
            );
            continue;
        }
        check_claim(
            query,
            claim,
            &allocation.devices.results,
            &before,
            &mut held,
        );
    }
    let new: BTreeSet<DeviceName<'_>> = query
        .claims
        .iter()
        .zip(results)
        .filter(|(claim, _)| allocation_of(claim).is_none())
        .flat_map(|(_, allocation)| &allocation.devices.results)
        .filter(|result| result.admin_access != Some(true))
        .map(name_of)
        .collect();
    for name in &new {
        if let Some(shares) = held.shares.get(name) {
            check_capacity(query, *name, shares);
        }
    }
    check_counters(query, &new);
}

/// The devices and shares of all claims, including those of the query.
#[derive(Clone, Default)]
struct Usage<'a> {
    whole: BTreeSet<DeviceName<'a>>,
    shares: BTreeMap<DeviceName<'a>, Vec<&'a BTreeMap<String, Quantity>>>,
}

impl<'a> Usage<'a> {
    fn add(&mut self, result: &'a DeviceRequestAllocationResult) {
        if result.admin_access == Some(true) {
            return;
        }
        if result.share_id.is_none() {
            self.whole.insert(name_of(result));
        } else {
            let shares = self.shares.entry(name_of(result)).or_default();
            shares.push(&result.consumed_capacity);
        }
    }
}

fn check_claim<'a>(
    query: &Query,
    claim: &ResourceClaim,
    results: &'a [DeviceRequestAllocationResult],
    before: &Usage<'_>,
    held: &mut Usage<'a>,
) {
    assert!(
        results.len() <= MAX_CLAIM_DEVICES,
        "{} devices in one claim",
        results.len()
    );
    let requested = requested(claim);
    for result in results {
        let expected: Vec<&RequestSpec<'_>> = requested
            .iter()
            .filter(|requested| requested.name == result.request)
            .collect();
        assert!(!expected.is_empty(), "no request matches {result:?}");
        let name = name_of(result);
        let devices = devices_of(query, name);
        assert!(!devices.is_empty(), "no such device on the node: {name:?}");
        // Duplicate names make the request and the device ambiguous: one combination must fit.
        let fits = devices.iter().any(|(_, device)| {
            expected
                .iter()
                .any(|requested| check_fit(query, requested, device, result).is_ok())
        });
        if !fits {
            let why = check_fit(query, expected[0], devices[0].1, result);
            panic!("{result:?} does not fit its request: {why:?}");
        }
        if result.admin_access == Some(true) {
            continue;
        }
        assert!(!before.whole.contains(&name), "{name:?} is already in use");
        if result.share_id.is_none() {
            assert!(!held.shares.contains_key(&name), "{name:?} has shares");
            assert!(!held.whole.contains(&name), "{name:?} is allocated twice");
        }
        held.add(result);
    }
    check_counts(&requested, results);
    for (index, constraint) in claim.spec.devices.constraints.iter().enumerate() {
        let bound: Vec<&DeviceRequestAllocationResult> = results
            .iter()
            .filter(|result| {
                let main = result.request.split('/').next().unwrap_or_default();
                constraint.requests.is_empty()
                    || constraint
                        .requests
                        .iter()
                        .any(|name| *name == result.request || name == main)
            })
            .collect();
        let values: Vec<Option<&DeviceAttribute>> = bound
            .iter()
            .map(|result| {
                let name = constraint
                    .match_attribute
                    .as_ref()
                    .or(constraint.distinct_attribute.as_ref());
                attribute(query, name_of(result), name?)
            })
            .collect();
        assert!(
            values.iter().all(Option::is_some),
            "constraint {index}: a device without the attribute: {bound:?}"
        );
        if constraint.match_attribute.is_some() {
            assert!(
                values.windows(2).all(|pair| pair[0] == pair[1]),
                "constraint {index}: different values: {values:?}"
            );
        } else {
            for (index, value) in values.iter().enumerate() {
                assert!(
                    !values[index + 1..].contains(value),
                    "constraint {index}: duplicate values: {values:?}"
                );
            }
        }
    }
}

/// A request, or an alternative of one.
struct RequestSpec<'a> {
    name: String,
    /// The request's index in the claim.
    index: usize,
    class: &'a str,
    selectors: &'a [DeviceSelector],
    mode: &'a str,
    count: i64,
    admin: bool,
    tolerations: &'a [DeviceToleration],
    capacity: Option<&'a CapacityRequirements>,
}

fn requested(claim: &ResourceClaim) -> Vec<RequestSpec<'_>> {
    let mut requested = Vec::new();
    for (index, request) in claim.spec.devices.requests.iter().enumerate() {
        if request.first_available.is_empty()
            && let Some(exactly) = &request.exactly
        {
            requested.push(RequestSpec {
                name: request.name.clone(),
                index,
                class: &exactly.device_class_name,
                selectors: &exactly.selectors,
                mode: &exactly.allocation_mode,
                count: exactly.count,
                admin: exactly.admin_access.unwrap_or(false),
                tolerations: &exactly.tolerations,
                capacity: exactly.capacity.as_ref(),
            });
        }
        for sub in &request.first_available {
            requested.push(RequestSpec {
                // As kube-scheduler does for a request without a name.
                name: match request.name.as_str() {
                    "" => sub.name.clone(),
                    main => format!("{main}/{}", sub.name),
                },
                index,
                class: &sub.device_class_name,
                selectors: &sub.selectors,
                mode: &sub.allocation_mode,
                count: sub.count,
                admin: false,
                tolerations: &sub.tolerations,
                capacity: sub.capacity.as_ref(),
            });
        }
    }
    requested
}

/// Checks that each request has the requested number of devices, from one of its alternatives.
fn check_counts(requested: &[RequestSpec<'_>], results: &[DeviceRequestAllocationResult]) {
    let names: BTreeSet<&str> = requested
        .iter()
        .map(|requested| requested.name.as_str())
        .collect();
    if names.len() != requested.len() {
        return;
    }
    let mut by_request: BTreeMap<usize, Vec<(&RequestSpec<'_>, usize)>> = BTreeMap::new();
    for requested in requested {
        let found = results
            .iter()
            .filter(|result| result.request == requested.name)
            .count();
        by_request
            .entry(requested.index)
            .or_default()
            .push((requested, found));
    }
    for alternatives in by_request.values() {
        let enough = |(requested, found): &(&RequestSpec<'_>, usize)| {
            let expected = usize::try_from(requested.count.max(i64::from(requested.count == 0)));
            if requested.mode == ALL {
                *found > 0
            } else {
                *found == expected.unwrap_or(0)
            }
        };
        assert!(
            alternatives.iter().any(|alternative| {
                enough(alternative)
                    && alternatives
                        .iter()
                        .all(|other| other.0.name == alternative.0.name || other.1 == 0)
            }),
            "a request has a wrong number of devices: {:?}",
            alternatives
                .iter()
                .map(|(requested, found)| (&requested.name, requested.mode, requested.count, found))
                .collect::<Vec<_>>()
        );
    }
}

/// Whether selectors, taints and capacity allow the device for the request.
fn check_fit(
    query: &Query,
    requested: &RequestSpec<'_>,
    device: &Device,
    result: &DeviceRequestAllocationResult,
) -> Result<(), String> {
    let class: &DeviceClass = query
        .classes
        .iter()
        .rfind(|class| class.metadata.name == requested.class)
        .ok_or("no class")?;
    let input = DeviceInput::new(&result.driver, device);
    for selector in class.spec.selectors.iter().chain(requested.selectors) {
        let input = input.as_ref().map_err(ToString::to_string)?;
        let expression = &selector.cel.as_ref().ok_or("no expression")?.expression;
        let program = Program::compile(expression).map_err(|error| error.to_string())?;
        let matches = program.matches(input).map_err(|error| error.to_string())?;
        if !matches {
            return Err(format!("{expression} is false"));
        }
    }
    let shared = device.allow_multiple_allocations.unwrap_or(false);
    if requested.admin != (result.admin_access == Some(true)) {
        return Err("admin access".to_owned());
    }
    for taint in &device.taints {
        let keeps_away = ["NoSchedule", "NoExecute"].contains(&taint.effect.as_str());
        let tolerated = requested.tolerations.iter().any(|toleration| {
            (toleration.key.is_empty() || toleration.key == taint.key)
                && (toleration.effect.is_empty() || toleration.effect == taint.effect)
                && match toleration.operator.as_str() {
                    "Exists" => true,
                    "" | "Equal" => toleration.value == taint.value,
                    _ => false,
                }
        });
        if keeps_away && !tolerated {
            return Err(format!("{taint:?} is not tolerated"));
        }
    }
    if shared != result.share_id.is_some() && !requested.admin {
        return Err("a share of a device without shares, or none of one with".to_owned());
    }
    for (name, expected) in requested
        .capacity
        .iter()
        .flat_map(|requested| &requested.requests)
    {
        let has = device.capacity.get(name).ok_or("no such capacity")?;
        if has.value < *expected {
            return Err(format!("{name}: {expected} of {}", has.value));
        }
        if shared
            && result
                .consumed_capacity
                .get(name)
                .is_none_or(|consumed| consumed < expected)
        {
            return Err(format!("{name}: less than {expected} is allocated"));
        }
    }
    Ok(())
}

/// Checks that the shares of a device do not exceed its capacity.
fn check_capacity(query: &Query, name: DeviceName<'_>, shares: &[&BTreeMap<String, Quantity>]) {
    let fits = devices_of(query, name).iter().any(|(_, device)| {
        device.capacity.iter().all(|(capacity, has)| {
            let mut sum = Quantity::default();
            for share in shares {
                if let Some(amount) = share.get(capacity) {
                    sum.add(amount);
                }
            }
            sum <= has.value
        })
    });
    assert!(
        fits,
        "the shares of {name:?} exceed its capacity: {shares:?}"
    );
}

/// Checks that the new devices of a pool do not exceed its counters.
fn check_counters(query: &Query, names: &BTreeSet<DeviceName<'_>>) {
    let mut consumed: BTreeMap<(&str, &str, &str, &str), Quantity> = BTreeMap::new();
    for name in names {
        let [(_, device)] = devices_of(query, *name)[..] else {
            return;
        };
        for consumption in &device.consumes_counters {
            for (counter, amount) in &consumption.counters {
                let key = (
                    name.0,
                    name.1,
                    consumption.counter_set.as_str(),
                    counter.as_str(),
                );
                consumed.entry(key).or_default().add(&amount.value);
            }
        }
    }
    for ((driver, pool, set, counter), sum) in consumed {
        let enough = query
            .slices
            .iter()
            .filter(|slice| slice.spec.driver == driver && slice.spec.pool.name == pool)
            .flat_map(|slice| &slice.spec.shared_counters)
            .filter(|other| other.name == set)
            .filter_map(|set| set.counters.get(counter))
            .any(|counter| sum <= counter.value);
        assert!(
            enough,
            "{sum} of counter {counter} of set {set} is more than pool {pool} has"
        );
    }
}

/// The attribute of the device, by its qualified name or without the driver's domain.
fn attribute<'a>(
    query: &'a Query,
    device: DeviceName<'_>,
    name: &str,
) -> Option<&'a DeviceAttribute> {
    let short = name
        .strip_prefix(device.0)
        .and_then(|rest| rest.strip_prefix('/'));
    devices_of(query, device).iter().find_map(|(_, device)| {
        device
            .attributes
            .get(name)
            .or_else(|| device.attributes.get(short?))
    })
}

/// The devices of this name in slices that may apply to the node, except slices of outdated generations.
fn devices_of<'a>(
    query: &'a Query,
    (driver, pool, device): DeviceName<'_>,
) -> Vec<(&'a ResourceSlice, &'a Device)> {
    let node = query.node();
    let here = |name: &Option<String>, everywhere: Option<bool>| {
        let name = name.as_deref().unwrap_or_default();
        (!name.is_empty() && name == node) || (name.is_empty() && everywhere == Some(true))
    };
    let of_pool =
        |slice: &&ResourceSlice| slice.spec.driver == driver && slice.spec.pool.name == pool;
    let newest = query
        .slices
        .iter()
        .filter(of_pool)
        .filter(|slice| here(&slice.spec.node_name, slice.spec.all_nodes))
        .map(|slice| slice.spec.pool.generation)
        .max()
        .unwrap_or(i64::MIN);
    let mut found = Vec::new();
    for slice in query.slices.iter().filter(of_pool) {
        let spec = &slice.spec;
        if spec.pool.generation < newest {
            continue;
        }
        let slice_here = here(&spec.node_name, spec.all_nodes) || spec.node_selector.is_some();
        for entry in spec.devices.iter().filter(|entry| entry.name == device) {
            let device_here = spec.per_device_node_selection == Some(true)
                && (here(&entry.node_name, entry.all_nodes) || entry.node_selector.is_some());
            if slice_here || device_here {
                found.push((slice, entry));
            }
        }
    }
    found
}

fn name_of(result: &DeviceRequestAllocationResult) -> DeviceName<'_> {
    (&result.driver, &result.pool, &result.device)
}

fn allocation_of(claim: &ResourceClaim) -> Option<&AllocationResult> {
    claim.status.as_ref()?.allocation.as_ref()
}
