//! Questions to the allocator. Whatever it allocates is checked against what the claims, classes and slices say, without its
//! own code.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dra_allocator::{Limits, Query, Response, allocate, explain};
use dra_api::{
    ALL, AllocationResult, CapacityRequirements, Device, DeviceAttribute, DeviceClass,
    DeviceRequestAllocationResult, DeviceSelector, DeviceToleration, Quantity, ResourceClaim,
    ResourceSlice,
};
use dra_cel::{DeviceInput, Program};

use crate::Target;
use crate::json::read;

pub const TARGET: Target = Target {
    name: "allocation",
    check,
    heap_bytes: 256 << 20,
    // Four response, each within the deadline, and the selectors once more.
    cpu: Duration::from_secs(20),
};

const DEADLINE_MS: u64 = 2_000;
const MAX_STEPS: u64 = 20_000;
const MAX_CLAIM_DEVICES: usize = 32;

type DeviceName<'a> = (&'a str, &'a str, &'a str);

fn check(data: &[u8]) {
    let Some(mut query) = read::<Query>(data) else {
        return;
    };
    query.limits = Limits {
        deadline_ms: DEADLINE_MS,
        max_steps: MAX_STEPS,
        share_id_seed: query.limits.share_id_seed,
        ..Limits::default()
    };
    let response = allocate(&query);
    if exceeded_limit(&response) {
        return;
    }
    assert!(
        response.allocated || response.results.is_empty(),
        "results of claims that do not fit"
    );
    assert!(
        !(response.allocated && response.error.is_some()),
        "allocated, and {:?}",
        response.error
    );
    let explanation = explain(&query);
    assert!(!explanation.summary.is_empty(), "no summary");
    if !explanation.error.as_deref().is_some_and(is_limit) {
        assert_eq!(explanation.fits, response.allocated, "explain and allocate");
    }
    for attempts in [0, u64::MAX] {
        query.limits.attempts_before_pruning = attempts;
        let other = allocate(&query);
        if !exceeded_limit(&other) {
            assert_eq!(
                (other.allocated, &other.results, &other.error),
                (response.allocated, &response.results, &response.error),
                "an response depends on when the search is pruned"
            );
        }
    }
    if response.allocated {
        check_results(&query, &response.results);
    }
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
    let mut held = Held::default();
    let mut seen = BTreeSet::new();
    for claim in query.allocated.iter().chain(&query.claims) {
        if let Some(allocation) = allocation_of(claim) {
            let meta = &claim.metadata;
            let named = !(meta.uid.is_empty() && meta.name.is_empty());
            let identity = match meta.uid.as_str() {
                "" => (&meta.namespace, &meta.name),
                uid => (&String::new(), &uid.to_owned()),
            };
            let identity = (identity.0.clone(), identity.1.clone());
            if !named || seen.insert(identity) {
                for result in &allocation.devices.results {
                    held.add(result);
                }
            }
        }
    }
    let before = held.clone();
    for (claim, allocation) in query.claims.iter().zip(results) {
        if let Some(given) = allocation_of(claim) {
            assert_eq!(
                allocation, given,
                "a claim that was allocated is allocated anew"
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

/// What claims hold, those of the query included.
#[derive(Clone, Default)]
struct Held<'a> {
    whole: BTreeSet<DeviceName<'a>>,
    shares: BTreeMap<DeviceName<'a>, Vec<&'a BTreeMap<String, Quantity>>>,
}

impl<'a> Held<'a> {
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
    before: &Held<'_>,
    held: &mut Held<'a>,
) {
    assert!(
        results.len() <= MAX_CLAIM_DEVICES,
        "{} devices in one claim",
        results.len()
    );
    let asked = asked(claim);
    for result in results {
        let wanted: Vec<&Asked<'_>> = asked
            .iter()
            .filter(|asked| asked.name == result.request)
            .collect();
        assert!(!wanted.is_empty(), "nobody asked for {result:?}");
        let name = name_of(result);
        let devices = devices_of(query, name);
        assert!(!devices.is_empty(), "no such device on the node: {name:?}");
        // Names that are not unique leave open which request and which device are meant: one of them must fit.
        let fits = devices.iter().any(|(_, device)| {
            wanted
                .iter()
                .any(|asked| suits(query, asked, device, result).is_ok())
        });
        if !fits {
            let why = suits(query, wanted[0], devices[0].1, result);
            panic!("{result:?} does not suit its request: {why:?}");
        }
        if result.admin_access == Some(true) {
            continue;
        }
        assert!(!before.whole.contains(&name), "{name:?} is held already");
        if result.share_id.is_none() {
            assert!(!held.shares.contains_key(&name), "{name:?} has shares");
            assert!(!held.whole.contains(&name), "{name:?} is given twice");
        }
        held.add(result);
    }
    check_counts(&asked, results);
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
                    "constraint {index}: one value twice: {values:?}"
                );
            }
        }
    }
}

/// A request, or an alternative of one.
struct Asked<'a> {
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

fn asked(claim: &ResourceClaim) -> Vec<Asked<'_>> {
    let mut asked = Vec::new();
    for (index, request) in claim.spec.devices.requests.iter().enumerate() {
        if request.first_available.is_empty()
            && let Some(exactly) = &request.exactly
        {
            asked.push(Asked {
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
            asked.push(Asked {
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
    asked
}

/// As many devices as each request wants, of one of its alternatives.
fn check_counts(asked: &[Asked<'_>], results: &[DeviceRequestAllocationResult]) {
    let names: BTreeSet<&str> = asked.iter().map(|asked| asked.name.as_str()).collect();
    if names.len() != asked.len() {
        return;
    }
    let mut by_request: BTreeMap<usize, Vec<(&Asked<'_>, usize)>> = BTreeMap::new();
    for asked in asked {
        let found = results
            .iter()
            .filter(|result| result.request == asked.name)
            .count();
        by_request
            .entry(asked.index)
            .or_default()
            .push((asked, found));
    }
    for alternatives in by_request.values() {
        let enough = |(asked, found): &(&Asked<'_>, usize)| {
            let wanted = usize::try_from(asked.count.max(i64::from(asked.count == 0)));
            if asked.mode == ALL {
                *found > 0
            } else {
                *found == wanted.unwrap_or(0)
            }
        };
        assert!(
            alternatives.iter().any(|alternative| {
                enough(alternative)
                    && alternatives
                        .iter()
                        .all(|other| other.0.name == alternative.0.name || other.1 == 0)
            }),
            "a request has not as many devices as it wants: {:?}",
            alternatives
                .iter()
                .map(|(asked, found)| (&asked.name, asked.mode, asked.count, found))
                .collect::<Vec<_>>()
        );
    }
}

/// Whether selectors, taints and capacity allow the device for the request.
fn suits(
    query: &Query,
    asked: &Asked<'_>,
    device: &Device,
    result: &DeviceRequestAllocationResult,
) -> Result<(), String> {
    let class: &DeviceClass = query
        .classes
        .iter()
        .rfind(|class| class.metadata.name == asked.class)
        .ok_or("no class")?;
    let input = DeviceInput::new(&result.driver, device);
    for selector in class.spec.selectors.iter().chain(asked.selectors) {
        let input = input.as_ref().map_err(ToString::to_string)?;
        let expression = &selector.cel.as_ref().ok_or("no expression")?.expression;
        let program = Program::compile(expression).map_err(|error| error.to_string())?;
        let matches = program.matches(input).map_err(|error| error.to_string())?;
        if !matches {
            return Err(format!("{expression} is false"));
        }
    }
    let shared = device.allow_multiple_allocations.unwrap_or(false);
    if asked.admin != (result.admin_access == Some(true)) {
        return Err("admin access".to_owned());
    }
    for taint in &device.taints {
        let keeps_away = ["NoSchedule", "NoExecute"].contains(&taint.effect.as_str());
        let tolerated = asked.tolerations.iter().any(|toleration| {
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
    if shared != result.share_id.is_some() && !asked.admin {
        return Err("a share of a device without shares, or none of one with".to_owned());
    }
    for (name, wanted) in asked.capacity.iter().flat_map(|asked| &asked.requests) {
        let has = device.capacity.get(name).ok_or("no such capacity")?;
        if has.value < *wanted {
            return Err(format!("{name}: {wanted} of {}", has.value));
        }
        if shared
            && result
                .consumed_capacity
                .get(name)
                .is_none_or(|consumed| consumed < wanted)
        {
            return Err(format!("{name}: less is given than {wanted}"));
        }
    }
    Ok(())
}

/// The shares of a device together are no more than it has.
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
        "the shares of {name:?} are more than it has: {shares:?}"
    );
}

/// What the new devices of a pool consume is no more than its counters have.
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

/// The attribute of the device, by its full name or without the driver's domain.
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

/// Devices of this name in slices that may be for the node, of no generation that is older than one for the node.
fn devices_of<'a>(
    query: &'a Query,
    (driver, pool, device): DeviceName<'_>,
) -> Vec<(&'a ResourceSlice, &'a Device)> {
    let node = query.node.0.metadata.name.as_str();
    let here = |name: &Option<String>, everywhere: Option<bool>| {
        let name = name.as_deref().unwrap_or_default();
        (!name.is_empty() && name == node) || (name.is_empty() && everywhere == Some(true))
    };
    let of_pool = |slice: &&ResourceSlice| {
        slice.spec.driver == driver
            && slice.spec.pool.name == pool
            && !slice
                .spec
                .devices
                .iter()
                .flat_map(|device| &device.consumes_counters)
                .any(|consumption| !consumption.compatibility_groups.is_empty())
    };
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
