//! A cluster keeps objects between queries: what changes report, what is released, and how many copies fit where.
//!
//! tests/allocator compares its results with those of kube-scheduler's code. These tests find a defect without Python.

#![allow(clippy::unwrap_used)]

use dra_allocator::{Capacity, Cause, Cluster, Gates, NodeCapacity, Options, Response};
use serde_json::{Value, json};

const DRIVER: &str = "gpu.example.com";

fn devices(count: usize) -> Value {
    (0..count)
        .map(|number| json!({"name": format!("d{number}")}))
        .collect()
}

fn slice(name: &str, place: Value, devices: Value) -> Value {
    let mut slice = json!({"metadata": {"name": name}, "spec": {"driver": DRIVER,
        "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}, "devices": devices}});
    for (key, value) in place.as_object().unwrap() {
        slice["spec"][key] = value.clone();
    }
    slice
}

fn on_node(node: &str, count: usize) -> Value {
    slice(node, json!({"nodeName": node}), devices(count))
}

/// A claim for `count` devices, whose uid is its name with a prefix.
fn claim(name: &str, count: usize) -> Value {
    json!({"metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}")},
        "spec": {"devices": {"requests": [
            {"name": "main", "exactly": {"deviceClassName": "any", "count": count}}]}}})
}

fn allocated(mut claim: Value, pool: &str, device: &str) -> Value {
    claim["status"] = json!({"allocation": {"devices": {"results": [
        {"request": "main", "driver": DRIVER, "pool": pool, "device": device}]}}});
    claim
}

fn bytes(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).unwrap()
}

fn cluster(slices: &[Value]) -> Cluster {
    let cluster = Cluster::default();
    cluster
        .update_classes(&bytes(&json!({"metadata": {"name": "any"}, "spec": {}})))
        .unwrap();
    cluster.update_slices(&bytes(&json!(slices)), true).unwrap();
    cluster
}

fn allocate(cluster: &Cluster, node: &str, claim: &Value) -> Response {
    cluster
        .allocate(node, &bytes(claim), Options::default())
        .unwrap()
}

/// The devices of the first claim; none if it does not fit.
fn allocated_devices(cluster: &Cluster, node: &str, claim: &Value) -> Vec<String> {
    let response = allocate(cluster, node, claim);
    assert_eq!(response.error, None);
    let results = serde_json::to_value(&response.results).unwrap();
    let results = results[0]["devices"]["results"].as_array().cloned();
    results
        .unwrap_or_default()
        .iter()
        .map(|result| result["device"].as_str().unwrap().to_owned())
        .collect()
}

fn capacity(cluster: &Cluster, copy: &Value, shared: &Value) -> Capacity {
    cluster
        .capacity(None, &bytes(copy), &bytes(shared), 100, Options::default())
        .unwrap()
}

fn copies(capacity: &Capacity) -> Vec<(&str, u64)> {
    capacity
        .nodes
        .iter()
        .map(|entry: &NodeCapacity| (entry.node.as_str(), entry.copies))
        .collect()
}

// === Changes ===

#[test]
fn a_removal_reports_whether_there_was_an_object() {
    let cluster = cluster(&[on_node("n1", 1)]);
    cluster
        .update_nodes(&bytes(&json!({"metadata": {"name": "n1"}})))
        .unwrap();
    assert!(cluster.delete_slice("n1") && !cluster.delete_slice("n1"));
    assert!(cluster.delete_class("any") && !cluster.delete_class("any"));
    assert!(cluster.delete_node("n1") && !cluster.delete_node("n1"));
    let counts = cluster.counts();
    assert_eq!((counts.slices, counts.classes, counts.nodes), (0, 0, 0));
    assert_eq!(counts.slices_decoded, 1);
}

#[test]
fn a_slice_that_must_be_new_does_not_replace_another() {
    let cluster = cluster(&[on_node("n1", 1)]);
    let add = |slices: &Value, new| cluster.update_slices(&bytes(slices), new);
    let duplicate = "ResourceSlice n1: metadata.name: must be unique, two objects have it";
    let error = add(&json!([on_node("n2", 1), on_node("n1", 2)]), true).unwrap_err();
    assert_eq!(error.to_string(), duplicate);
    let error = add(&json!([on_node("n2", 1), on_node("n2", 1)]), true).unwrap_err();
    assert_eq!(error.to_string(), duplicate.replace("n1", "n2"));
    assert_eq!(cluster.counts().slices, 1, "nothing changes with an error");
    add(&on_node("n2", 1), true).unwrap();
    add(&on_node("n1", 2), false).unwrap();
    assert_eq!(cluster.counts().slices, 2);
    assert_eq!(
        allocated_devices(&cluster, "n1", &claim("c", 2)),
        ["d0", "d1"]
    );
}

#[test]
fn an_unknown_node_is_an_error_once_there_are_nodes() {
    let cluster = cluster(&[on_node("n1", 1)]);
    assert!(!allocate(&cluster, "elsewhere", &claim("c", 1)).allocated);
    cluster
        .update_nodes(&bytes(&json!({"metadata": {"name": "n1"}})))
        .unwrap();
    let error = cluster.allocate("n2", &bytes(&claim("c", 1)), Options::default());
    assert_eq!(
        error.unwrap_err().to_string(),
        "node n2 is none of the 1 known nodes"
    );
}

// === Held claims ===

#[test]
fn a_held_device_is_in_use_until_its_claim_is_released() {
    let cluster = cluster(&[on_node("n1", 2)]);
    let first = allocated(claim("a", 1), "n1", "d0");
    cluster.hold(&bytes(&first), false).unwrap();
    let next = claim("b", 1);
    assert_eq!(allocated_devices(&cluster, "n1", &next), ["d1"]);
    // A claim that is held again has its new device only.
    let moved = allocated(claim("a", 1), "n1", "d1");
    cluster.hold(&bytes(&moved), false).unwrap();
    assert_eq!(allocated_devices(&cluster, "n1", &next), ["d0"]);
    assert_eq!(cluster.counts().held, 1);
    assert_eq!(cluster.release(&bytes(&first)).unwrap(), 1);
    assert_eq!(cluster.release(&bytes(&first)).unwrap(), 0);
    assert_eq!(
        allocated_devices(&cluster, "n1", &claim("b", 2)),
        ["d0", "d1"]
    );
}

/// Each form of an identity: a uid, a name in a namespace, and a name alone. The claims use one device together, so a
/// release that hits the wrong claim changes who uses it.
#[test]
fn a_release_affects_only_the_claim_with_this_identity() {
    let identities = [
        json!({"uid": "u", "name": "c", "namespace": "ns"}),
        json!({"name": "c", "namespace": "ns"}),
        json!({"name": "c", "namespace": "other"}),
        json!({"name": "c"}),
        json!({"name": "d"}),
    ];
    let held: Vec<Value> = identities
        .iter()
        .enumerate()
        .map(|(number, identity)| {
            let mut claim = allocated(claim("", 1), "n1", "d0");
            claim["metadata"] = identity.clone();
            let result = &mut claim["status"]["allocation"]["devices"]["results"][0];
            result["shareID"] = json!(format!("share-{number}"));
            result["consumedCapacity"] = json!({"memory": "1Gi"});
            claim
        })
        .collect();
    let device = json!([{"name": "d0", "allowMultipleAllocations": true,
        "capacity": {"memory": {"value": "5Gi", "requestPolicy": {"default": "1Gi"}}}}]);
    for released in 0..held.len() {
        let cluster = cluster(&[slice("n1", json!({"nodeName": "n1"}), device.clone())]);
        cluster.hold(&bytes(&json!(held)), false).unwrap();
        assert_eq!(cluster.counts().held, held.len());
        assert!(!allocate(&cluster, "n1", &claim("next", 1)).allocated);
        assert_eq!(cluster.release(&bytes(&held[released])).unwrap(), 1);
        assert!(
            allocate(&cluster, "n1", &claim("next", 1)).allocated,
            "the share of {} is free",
            held[released]["metadata"]
        );
        let two = json!([claim("next", 1), claim("after", 1)]);
        assert!(
            !allocate(&cluster, "n1", &two).allocated,
            "only the share of {} is free",
            held[released]["metadata"]
        );
    }
}

#[test]
fn only_an_allocated_claim_with_an_identity_can_be_held() {
    let cluster = cluster(&[on_node("n1", 1)]);
    let pending = bytes(&claim("a", 1));
    let error = cluster.hold(&pending, false).unwrap_err().to_string();
    assert!(error.contains("status.allocation: must be set"), "{error}");
    cluster.hold(&pending, true).unwrap();
    let mut nameless = allocated(claim("a", 1), "n1", "d0");
    nameless["metadata"] = json!({});
    for error in [
        cluster.hold(&bytes(&nameless), false).unwrap_err(),
        cluster.release(&bytes(&nameless)).unwrap_err(),
    ] {
        assert_eq!(
            error.to_string(),
            "ResourceClaim item 0: metadata.uid: must be set, or metadata.name"
        );
    }
    assert_eq!(cluster.counts().held, 0);
}

#[test]
fn held_claims_can_be_ignored() {
    let cluster = cluster(&[on_node("n1", 1)]);
    let held = allocated(claim("a", 1), "n1", "d0");
    cluster.hold(&bytes(&held), false).unwrap();
    let options = Options {
        ignore_held: true,
        ..Options::default()
    };
    let next = bytes(&claim("b", 1));
    assert!(
        !cluster
            .allocate("n1", &next, Options::default())
            .unwrap()
            .allocated
    );
    assert!(cluster.allocate("n1", &next, options).unwrap().allocated);
    let sweep = cluster.fits(None, &next, options).unwrap();
    assert_eq!(sweep.fits, ["n1"]);
}

// === Which nodes ===

#[test]
fn a_sweep_names_the_reason_of_each_node() {
    let cluster = cluster(&[on_node("free", 2), on_node("full", 2), on_node("small", 1)]);
    let held = json!([
        allocated(claim("a", 1), "full", "d0"),
        allocated(claim("b", 1), "full", "d1")
    ]);
    cluster.hold(&bytes(&held), false).unwrap();
    let sweep = cluster
        .fits(None, &bytes(&claim("c", 2)), Options::default())
        .unwrap();
    assert_eq!(sweep.fits, ["free"]);
    assert!(sweep.errors.is_empty() && sweep.unexamined.is_empty());
    let reason = |node: &str| sweep.reasons[node].as_str();
    assert_eq!(
        reason("full"),
        "claim ns/c, request main needs 2 of 2 matching devices, 0 are available: 2 in use"
    );
    assert_eq!(
        reason("small"),
        "claim ns/c, request main needs 2 of 1 matching devices, 1 is available"
    );
}

#[test]
fn the_claim_that_is_allocated_on_another_node_is_named() {
    let cluster = cluster(&[on_node("n1", 2), on_node("n2", 2)]);
    let mut elsewhere = allocated(claim("there", 1), "n2", "d0");
    elsewhere["status"]["allocation"]["nodeSelector"] = json!({"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}]});
    let claims = bytes(&json!([claim("here", 1), elsewhere]));
    let sweep = cluster.fits(None, &claims, Options::default()).unwrap();
    assert_eq!(sweep.fits, ["n2"]);
    assert_eq!(
        sweep.reasons["n1"],
        "claim ns/there is allocated on another node: gpu.example.com/n2/d0"
    );
}

// === How many copies ===

#[test]
fn copies_are_counted_on_each_node_and_in_total() {
    let cluster = cluster(&[on_node("n1", 6), on_node("n2", 2), on_node("n3", 1)]);
    let held = allocated(claim("held", 1), "n1", "d2");
    cluster.hold(&bytes(&held), false).unwrap();
    let found = capacity(&cluster, &claim("c", 2), &json!([]));
    assert_eq!(copies(&found), [("n1", 2), ("n2", 1), ("n3", 0)]);
    assert_eq!((found.total, found.total_is_partial), (3, false));
    assert!(found.unexamined.is_empty());
    let entry = &found.nodes[0];
    assert_eq!(entry.causes, [Cause::Placed, Cause::InUse]);
    assert!(
        entry.reason.ends_with(": 4 used by these copies, 1 in use"),
        "{entry:?}"
    );
    assert!(!entry.has_network_devices && !entry.at_limit);
    assert_eq!(found.nodes[2].causes, [Cause::TooFew]);
}

#[test]
fn a_limit_of_copies_makes_the_total_a_lower_bound() {
    let cluster = cluster(&[on_node("n1", 5), on_node("n2", 1)]);
    let found = cluster
        .capacity(None, &bytes(&claim("c", 1)), b"[]", 2, Options::default())
        .unwrap();
    assert_eq!(copies(&found), [("n1", 2), ("n2", 1)]);
    assert_eq!((found.total, found.total_is_partial), (3, true));
    assert!(found.nodes[0].at_limit && !found.nodes[1].at_limit);
}

/// Devices that all nodes can use are counted once in the total.
#[test]
fn devices_of_the_network_are_counted_once() {
    let everywhere = slice("fabric", json!({"allNodes": true}), devices(3));
    let cluster = cluster(&[everywhere]);
    let nodes = json!([{"metadata": {"name": "n1"}}, {"metadata": {"name": "n2"}}]);
    cluster.update_nodes(&bytes(&nodes)).unwrap();
    let found = capacity(&cluster, &claim("c", 1), &json!([]));
    assert_eq!(copies(&found), [("n1", 3), ("n2", 3)]);
    assert_eq!((found.total, found.total_is_partial), (3, false));
    assert!(found.nodes.iter().all(|entry| entry.has_network_devices));
}

/// The claim that all copies share takes a device once, on the node of the first copy.
#[test]
fn a_shared_claim_takes_its_devices_once() {
    let cluster = cluster(&[on_node("n1", 4), on_node("n2", 2)]);
    let found = capacity(&cluster, &claim("c", 1), &json!([claim("all", 1)]));
    assert_eq!(copies(&found), [("n1", 3), ("n2", 1)]);
    let of_first = found.total;
    assert_eq!(of_first, 3, "n2 cannot use the shared claim of n1");
    assert_eq!(found.nodes[0].causes, [Cause::Placed]);
}

#[test]
fn a_copy_has_no_allocation() {
    let cluster = cluster(&[on_node("n1", 1)]);
    let held = bytes(&allocated(claim("a", 1), "n1", "d0"));
    let error = cluster.capacity(None, &held, b"[]", 1, Options::default());
    assert_eq!(
        error.unwrap_err().to_string(),
        "ResourceClaim ns/a: status.allocation: must not be set: a copy needs its own devices"
    );
}

// === Limits ===

/// Each of these selectors is within the limit of one expression.
#[test]
fn the_regular_expressions_of_all_selectors_have_one_limit() {
    let selector = |number: usize| {
        let text = format!("{number:02}-{}", "abcdefghij".repeat(6));
        json!({"cel": {"expression": format!("!device.driver.matches('^({text}){{1000}}$')")}})
    };
    let with = |count: usize| {
        let mut claim = claim("c", 1);
        let selectors: Vec<Value> = (0..count).map(selector).collect();
        claim["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = json!(selectors);
        claim
    };
    let cluster = cluster(&[on_node("n1", 1)]);
    assert!(allocate(&cluster, "n1", &with(1)).allocated);
    let error = allocate(&cluster, "n1", &with(32)).error.unwrap();
    assert!(
        error.contains("the regular expressions of all selectors take more than 64 MiB together"),
        "{error}"
    );
}

#[test]
fn a_query_of_very_many_claims_is_refused_before_the_search() {
    let cluster = cluster(&[on_node("n1", 1)]);
    let many: Vec<Value> = (0..6_000)
        .map(|number| claim(&format!("c{number}"), 1))
        .collect();
    let error = allocate(&cluster, "n1", &json!(many)).error.unwrap();
    assert!(error.contains("the limit is 200000"), "{error}");
}

fn of_minor(minor: u32, slices: &[Value]) -> Cluster {
    let cluster = Cluster::with_gates(Gates::default().of_minor(minor));
    cluster
        .update_classes(&bytes(&json!({"metadata": {"name": "any"}, "spec": {}})))
        .unwrap();
    cluster.update_slices(&bytes(&json!(slices)), true).unwrap();
    cluster
}

/// The nodes whose error ends the attempt to schedule a pod.
fn fatal(cluster: &Cluster, claim: &Value) -> Vec<String> {
    let sweep = cluster.fits(None, &bytes(claim), Options::default());
    let sweep = sweep.unwrap();
    assert!(
        sweep
            .fatal
            .iter()
            .all(|node| sweep.errors.contains_key(node))
    );
    sweep.fatal
}

#[test]
fn an_unusable_pool_of_a_request_for_all_devices_is_fatal_before_1_38() {
    let mut part = on_node("part", 1);
    part["spec"]["pool"]["resourceSliceCount"] = json!(2);
    let invalid = slice(
        "invalid",
        json!({"nodeName": "invalid"}),
        json!([{"name": "d"}, {"name": "d"}]),
    );
    let slices = [part, invalid, on_node("whole", 1)];
    let mut all = claim("all", 1);
    all["spec"]["devices"]["requests"][0]["exactly"] =
        json!({"deviceClassName": "any", "allocationMode": "All"});
    for (minor, expected) in [(34, 2), (37, 2), (38, 0)] {
        let found = fatal(&of_minor(minor, &slices), &all);
        assert_eq!(found.len(), expected, "1.{minor}: {found:?}");
    }
    for (minor, expected) in [(34, vec!["invalid"]), (35, vec![]), (37, vec![])] {
        assert_eq!(fatal(&of_minor(minor, &slices), &claim("one", 1)), expected);
    }
}

#[test]
fn an_error_after_some_copies_is_fatal_to_the_next_one() {
    let devices = json!([{"name": "d0", "attributes": {"size": {"int": 80}}}, {"name": "d1"}]);
    let cluster = cluster(&[slice("n1", json!({"nodeName": "n1"}), devices)]);
    let mut copy = claim("copy", 1);
    copy["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = json!([{"cel":
        {"expression": format!("device.attributes[\"{DRIVER}\"].size > 40")}}]);
    copy["metadata"].as_object_mut().unwrap().remove("uid");
    let found = cluster
        .capacity(None, &bytes(&copy), b"[]", 10, Options::default())
        .unwrap();
    assert!(
        found.nodes[0].fatal && found.nodes[0].copies == 1,
        "{found:?}"
    );
    assert_eq!(found.nodes[0].causes, [Cause::Error]);
}

#[test]
fn a_capacity_with_the_driver_as_domain_is_the_same_one_from_1_38() {
    let qualified = format!("{DRIVER}/memory");
    let device = json!([{"name": "d", "allowMultipleAllocations": true,
        "capacity": {"memory": {"value": "10Gi"}}}]);
    let node = slice("n1", json!({"nodeName": "n1"}), device);
    let share = |name: &str, amounts: Value| {
        let mut share = claim(name, 1);
        share["spec"]["devices"]["requests"][0]["exactly"]["capacity"] =
            json!({"requests": amounts});
        share
    };
    let wanted = share("a", json!({&*qualified: "4Gi"}));
    assert!(!allocate(&of_minor(37, std::slice::from_ref(&node)), "n1", &wanted).allocated);
    let cluster = of_minor(38, &[node]);
    let response = allocate(&cluster, "n1", &wanted);
    let result = &response.results[0].devices.results[0];
    let consumed: Vec<&String> = result.consumed_capacity.keys().collect();
    assert_eq!(consumed, ["memory"], "as the slice names it");
    // What others consume counts in both spellings.
    for (name, spelling) in [("b", "memory"), ("c", &*qualified)] {
        let mut held = allocated(claim(name, 1), "n1", "d");
        held["status"]["allocation"]["devices"]["results"][0]["shareID"] = json!(name);
        held["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"] =
            json!({spelling: "4Gi"});
        cluster.hold(&bytes(&held), false).unwrap();
    }
    assert!(!allocate(&cluster, "n1", &wanted).allocated);
    assert!(allocate(&cluster, "n1", &share("d", json!({&*qualified: "2Gi"}))).allocated);
    let twice = share("e", json!({&*qualified: "1Gi", "memory": "1Gi"}));
    let response = allocate(&cluster, "n1", &twice);
    assert!(response.fatal && response.error.unwrap().contains("is requested as"));
}
