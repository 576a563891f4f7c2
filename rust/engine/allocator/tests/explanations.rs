//! The exact texts of explanations for each kind of rejection.

#![allow(clippy::unwrap_used)]

mod question;

use dra_allocator::{Explanation, Limits, Rejection};
use question::Question;
use serde_json::{Value, json};

const DRIVER: &str = "gpu.example.com";

fn device(name: &str, attributes: Value) -> Value {
    json!({"name": name, "attributes": attributes})
}

fn plain(count: usize) -> Vec<Value> {
    (0..count)
        .map(|n| device(&format!("d{n}"), json!({})))
        .collect()
}

/// One device for each value.
fn with(attribute: &str, values: &[Value]) -> Vec<Value> {
    values
        .iter()
        .enumerate()
        .map(|(n, value)| device(&format!("d{n}"), json!({attribute: value})))
        .collect()
}

fn numa(values: &[i64]) -> Vec<Value> {
    let values: Vec<Value> = values.iter().map(|value| json!({"int": value})).collect();
    with("numa", &values)
}

fn models(values: &[&str]) -> Vec<Value> {
    let values: Vec<Value> = values
        .iter()
        .map(|value| json!({"string": value}))
        .collect();
    with("model", &values)
}

fn slice(name: &str, pool: &str, count: usize, spec: Value) -> Value {
    let mut slice = json!({"metadata": {"name": name}, "spec": {"driver": DRIVER, "nodeName": "n1",
        "pool": {"name": pool, "generation": 1, "resourceSliceCount": count}}});
    for (key, value) in spec.as_object().unwrap() {
        slice["spec"][key] = value.clone();
    }
    slice
}

fn of(devices: Vec<Value>) -> Value {
    json!([slice("s", "p", 1, json!({"devices": devices}))])
}

fn ask(name: &str, count: i64, more: Value) -> Value {
    let mut exactly = json!({"deviceClassName": "any", "count": count});
    for (key, value) in more.as_object().unwrap() {
        exactly[key] = value.clone();
    }
    json!({"name": name, "exactly": exactly})
}

fn wants(expression: &str) -> Value {
    json!({"selectors": [{"cel": {"expression": expression}}]})
}

fn either(alternatives: &[(&str, i64)]) -> Value {
    let tasks: Vec<Value> = alternatives
        .iter()
        .map(|(name, count)| json!({"name": name, "deviceClassName": "any", "count": count}))
        .collect();
    json!({"name": "main", "firstAvailable": tasks})
}

fn claim(name: &str, requests: Value, constraints: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}")},
        "spec": {"devices": {"requests": requests, "constraints": constraints}}})
}

fn held(name: &str, results: Value) -> Value {
    let mut claim = claim(name, json!([]), json!([]));
    let mut results = results;
    for result in results.as_array_mut().unwrap() {
        result["request"] = json!("main");
        result["driver"] = json!(DRIVER);
        result["pool"] = json!("p");
    }
    claim["status"] = json!({"allocation": {"devices": {"results": results}}});
    claim
}

fn explained(slices: Value, claims: Value, allocated: Value) -> Explanation {
    question(slices, claims, allocated, json!({})).explain(Limits::default())
}

/// With further members of the question.
fn explained_with(slices: Value, claims: Value, allocated: Value, more: Value) -> Explanation {
    question(slices, claims, allocated, more).explain(Limits::default())
}

fn question(slices: Value, claims: Value, allocated: Value, more: Value) -> Question {
    let mut query = json!({"node": "n1", "slices": slices, "claims": claims,
        "allocated": allocated, "classes": [{"metadata": {"name": "any"}, "spec": {}},
            {"metadata": {"name": "picky"}, "spec": {"selectors": [{"cel": {"expression": "false"}}]}}]});
    for (key, value) in more.as_object().unwrap() {
        query[key] = value.clone();
    }
    Question::new(&query)
}

/// The summary of the first request of one claim.
fn summary(devices: Vec<Value>, request: Value) -> String {
    let claims = json!([claim("c", json!([request]), json!([]))]);
    let explanation = explained(of(devices), claims, json!([]));
    explanation.claims[0].requests[0].summary.clone()
}

fn messages(explanation: &Explanation, request: usize, device: usize) -> Vec<String> {
    let report = &explanation.claims[0].requests[request].devices[device];
    let rejections = serde_json::to_value(&report.rejections).unwrap();
    rejections
        .as_array()
        .unwrap()
        .iter()
        .map(|rejection| rejection["message"].as_str().unwrap().to_owned())
        .collect()
}

fn tainted(mut device: Value) -> Value {
    device["taints"] = json!([{"key": "k", "value": "v", "effect": "NoSchedule"}]);
    device
}

// === How many ===

#[test]
fn what_fits_reports_how_many_devices_match() {
    for (count, needed, wanted) in [
        (1, 1, "1 of 1 device matches and is free, 1 is needed"),
        (2, 1, "2 of 2 devices match and are free, 1 is needed"),
        (3, 2, "3 of 3 devices match and are free, 2 are needed"),
        (2, 2, "2 of 2 devices match and are free, 2 are needed"),
        (2, 3, "2 of 2 devices match, 3 are needed"),
        (1, 2, "1 of 1 device matches, 2 are needed"),
    ] {
        assert_eq!(
            summary(plain(count), ask("main", needed, json!({}))),
            wanted
        );
    }
    let all = |count| {
        summary(
            plain(count),
            ask("main", 1, json!({"allocationMode": "All"})),
        )
    };
    assert_eq!(
        all(2),
        "2 of 2 devices match and are free, all of them are needed"
    );
    let default = json!({"name": "main", "exactly": {"deviceClassName": "any"}});
    assert_eq!(
        summary(plain(1), default),
        "1 of 1 device matches and is free, 1 is needed"
    );
}

#[test]
fn devices_that_are_rejected_are_counted_by_their_reason() {
    let mut devices = plain(4);
    devices[0] = tainted(devices[0].take());
    let needs = |count| ask("main", count, json!({}));
    assert_eq!(
        summary(devices.clone(), needs(4)),
        "4 of 4 devices match, 3 are free, 4 are needed; 1 is tainted with k:NoSchedule"
    );
    for device in &mut devices[1..3] {
        *device = tainted(device.take());
    }
    assert_eq!(
        summary(devices, needs(2)),
        "4 of 4 devices match, 1 is free, 2 are needed; 3 are tainted with k:NoSchedule"
    );
    let two: Vec<Value> = plain(2).into_iter().map(tainted).collect();
    assert_eq!(
        summary(two, needs(1)),
        "2 of 2 devices match; both are tainted with k:NoSchedule"
    );
    let mut half = plain(2);
    half[1] = tainted(half[1].take());
    assert_eq!(
        summary(half, needs(2)),
        "2 of 2 devices match, 1 is free, 2 are needed; 1 is tainted with k:NoSchedule"
    );
}

#[test]
fn the_most_frequent_reason_comes_first() {
    let model = format!(r#"device.attributes["{DRIVER}"].model == "B""#);
    let mut devices = models(&["A", "B", "A"]);
    assert_eq!(
        summary(devices.clone(), ask("main", 1, wants(&model))),
        "1 of 3 devices matches and is free, 1 is needed"
    );
    devices[1] = device("d1", json!({"model": {"string": "C"}}));
    assert_eq!(
        summary(devices.clone(), ask("main", 1, wants(&model))),
        format!("none of 3 devices matches: all are rejected by selector 0 of request ({model})")
    );
    let mut slices = of(devices);
    slices[0]["spec"]["perDeviceNodeSelection"] = json!(true);
    slices[0]["spec"]
        .as_object_mut()
        .unwrap()
        .remove("nodeName");
    for (at, node) in ["n1", "n2", "n1"].into_iter().enumerate() {
        slices[0]["spec"]["devices"][at]["nodeName"] = json!(node);
        slices[0]["spec"]["devices"][at]["attributes"]["model"] =
            json!({"string": (if at == 1 { "B" } else { "A" })});
    }
    let claims = json!([claim(
        "c",
        json!([ask("main", 1, wants(&model))]),
        json!([])
    )]);
    let explanation = explained(slices, claims, json!([]));
    assert_eq!(
        explanation.claims[0].requests[0].summary,
        format!(
            "none of 3 devices matches: 2 are rejected by selector 0 of request ({model}), 1 is for other nodes"
        )
    );
    assert_eq!(
        messages(&explanation, 0, 1),
        ["it cannot be used on node n1"]
    );
    assert!(!explanation.claims[0].requests[0].devices[1].matches);
}

// === Selectors ===

#[test]
fn a_selector_is_named_by_its_owner_and_shortened() {
    let of_class = ask("main", 1, json!({"deviceClassName": "picky"}));
    assert_eq!(
        summary(plain(1), of_class),
        "none of 1 device matches: it is rejected by selector 0 of class picky (false)"
    );
    let padded = |length: usize| {
        let expression = format!("\"{}\" == \"\"", "x".repeat(length - 8));
        assert_eq!(expression.len(), length);
        let text = summary(plain(1), ask("main", 1, wants(&expression)));
        let shown = text
            .split_once('(')
            .unwrap()
            .1
            .strip_suffix(')')
            .unwrap()
            .to_owned();
        (expression, shown)
    };
    let (expression, shown) = padded(80);
    assert_eq!(shown, expression);
    let (expression, shown) = padded(81);
    assert_eq!(shown, format!("{}...", &expression[..77]));
    assert_eq!(
        summary(plain(1), ask("main", 1, wants("  1\n  ==   2 "))),
        "none of 1 device matches: it is rejected by selector 0 of request (1 == 2)"
    );
}

#[test]
fn a_selector_that_fails_ends_the_query_with_a_hint() {
    let expression = format!(r#"device.attributes["{DRIVER}"].model == "A""#);
    let claims = json!([claim(
        "c",
        json!([ask("main", 1, wants(&expression))]),
        json!([])
    )]);
    let explanation = explained(of(plain(1)), claims, json!([]));
    assert!(!explanation.fits);
    let request = &explanation.claims[0].requests[0];
    let error = request.error.as_deref().unwrap();
    assert!(
        error.starts_with("d0: selector 0 of request fails: "),
        "{error}"
    );
    assert!(
        error.contains("(write .?model.orValue(...) or has(...) for optional attributes): device."),
        "{error}"
    );
    assert_eq!(
        request.summary,
        format!("ends the allocation with an error: {error}")
    );
    assert_eq!(
        explanation.claims[0].summary,
        "request main ends the allocation with an error"
    );
    assert!(explanation.summary.starts_with("nothing is allocated on node n1: claim ns/c, request main: selector 0 fails on device gpu.example.com/p/d0: "), "{}", explanation.summary);
    let claims = json!([claim(
        "c",
        json!([ask("main", 1, wants("device."))]),
        json!([])
    )]);
    let explanation = explained(of(plain(1)), claims, json!([]));
    assert!(
        messages(&explanation, 0, 0)[0].starts_with("selector 0 of request does not compile: ")
    );
}

/// Kubernetes stops at the first selector that is false, and does not see that a later one fails.
#[test]
fn a_selector_after_one_that_is_false_cannot_fail() {
    let selectors = json!({"selectors": [{"cel": {"expression": "false"}}, {"cel": {"expression": "device."}}]});
    let claims = json!([claim("c", json!([ask("main", 1, selectors)]), json!([]))]);
    let explanation = explained(of(plain(1)), claims, json!([]));
    assert_eq!(explanation.error, None);
    assert_eq!(
        messages(&explanation, 0, 0),
        ["selector 0 of request is false: false"]
    );
    let both =
        json!({"selectors": [{"cel": {"expression": "false"}}, {"cel": {"expression": "1 == 2"}}]});
    let claims = json!([claim("c", json!([ask("main", 1, both)]), json!([]))]);
    let explanation = explained(of(plain(1)), claims, json!([]));
    assert_eq!(messages(&explanation, 0, 0).len(), 2);
}

// === Held, short and unusable ===

#[test]
fn holders_of_the_whole_device_are_named_and_admins_are_not() {
    let devices = plain(1);
    let allocated = json!([
        held("holder", json!([{"device": "d0"}])),
        held("admin", json!([{"device": "d0", "adminAccess": true}])),
    ]);
    let asked = |more: Value| {
        let claims = json!([claim("c", json!([ask("main", 1, more)]), json!([]))]);
        explained(of(devices.clone()), claims, allocated.clone())
    };
    let explanation = asked(json!({}));
    assert_eq!(
        messages(&explanation, 0, 0),
        ["it is held by claim ns/holder"]
    );
    let report = &explanation.claims[0].requests[0].devices[0];
    assert_eq!(report.holders.len(), 2);
    assert!(report.matches && !report.accepted);
    assert!(
        matches!(&report.rejections[0], Rejection::InUse { holders, .. } if holders.len() == 1)
    );
    let explanation = asked(json!({"adminAccess": true}));
    assert!(explanation.fits && explanation.claims[0].requests[0].admin_access);
    assert_eq!(
        explanation.claims[0].requests[0].devices[0]
            .rejections
            .len(),
        0
    );
}

#[test]
fn a_taint_is_shown_with_its_value() {
    let devices = vec![tainted(plain(1)[0].take())];
    let claims = json!([claim("c", json!([ask("main", 1, json!({}))]), json!([]))]);
    let explanation = explained(of(devices), claims.clone(), json!([]));
    assert_eq!(
        messages(&explanation, 0, 0),
        ["taint k=v:NoSchedule is not tolerated"]
    );
    let mut bare = plain(1);
    bare[0]["taints"] = json!([{"key": "k", "effect": "NoExecute"}]);
    let explanation = explained(of(bare), claims, json!([]));
    assert_eq!(
        messages(&explanation, 0, 0),
        ["taint k:NoExecute is not tolerated"]
    );
}

fn card() -> Value {
    let part = |name: &str, slots: i64| json!({"name": name, "consumesCounters": [{"counterSet": "card", "counters": {"slots": {"value": slots.to_string()}}}]});
    let sets = json!([
        {"name": "card", "counters": {"slots": {"value": "4"}, "other": {"value": "1"}}},
        {"name": "second", "counters": {"slots": {"value": "9"}}},
    ]);
    let elsewhere = json!({"name": "second-0", "consumesCounters": [{"counterSet": "second", "counters": {"slots": {"value": "1"}}}]});
    json!([
        slice(
            "s",
            "p",
            2,
            json!({"devices": [part("half-0", 2), part("half-1", 2), part("whole", 4), elsewhere]})
        ),
        slice("t", "p", 2, json!({"sharedCounters": sets})),
    ])
}

#[test]
fn a_counter_that_does_not_suffice_is_named_with_those_who_consume_it() {
    let claims = json!([claim("c", json!([ask("main", 3, json!({}))]), json!([]))]);
    let allocated = json!([held(
        "h",
        json!([{"device": "half-0"}, {"device": "second-0"}])
    )]);
    let explanation = explained(card(), claims, allocated);
    assert_eq!(
        messages(&explanation, 0, 2),
        ["counter card/slots has 2 left, 4 are needed, half-0 is held by claim ns/h"]
    );
    assert_eq!(messages(&explanation, 0, 1), [""; 0]);
    assert_eq!(
        explanation.claims[0].requests[0].summary,
        "4 of 4 devices match, 1 is free, 3 are needed; 2 are held by claim ns/h, 1 is short of counter card/slots"
    );
}

/// The first share of a device consumes the counters of the device, and later shares none.
#[test]
fn a_device_that_is_shared_already_needs_no_more_counters() {
    let mut slices = card();
    slices[0]["spec"]["devices"][2]["allowMultipleAllocations"] = json!(true);
    let claims = json!([claim("c", json!([ask("main", 1, json!({}))]), json!([]))]);
    let half = held("h", json!([{"device": "half-0"}]));
    let explanation = explained(slices.clone(), claims.clone(), json!([half.clone()]));
    assert_eq!(
        messages(&explanation, 0, 2),
        ["counter card/slots has 2 left, 4 are needed, half-0 is held by claim ns/h"]
    );
    let id = "00000000-0000-4000-8000-000000000000";
    let share = held("s", json!([{"device": "whole", "shareID": id}]));
    let explanation = explained(slices, claims, json!([share]));
    assert_eq!(messages(&explanation, 0, 2), [""; 0]);
}

fn memory(value: &str, policy: Value) -> Vec<Value> {
    vec![
        json!({"name": "d0", "allowMultipleAllocations": true, "capacity": {"memory": {"value": value, "requestPolicy": policy}}}),
    ]
}

#[test]
fn capacity_is_named_with_what_is_left_and_who_has_it() {
    let share = |name: &str, number: u8, amount: &str| {
        let id = format!("00000000-0000-4000-8000-00000000000{number}");
        held(
            name,
            json!([{"device": "d0", "shareID": id, "consumedCapacity": {"memory": amount}}]),
        )
    };
    let asked = |capacity: &str, amount: &str, policy: Value, allocated: Value| {
        let request = ask(
            "main",
            1,
            json!({"capacity": {"requests": {capacity: amount}}}),
        );
        let claims = json!([claim("c", json!([request]), json!([]))]);
        explained(of(memory("10Gi", policy)), claims, allocated)
    };
    let range = json!({"default": "1Gi", "validRange": {"min": "1Gi", "max": "2Gi"}});
    for (explanation, message, brief) in [
        (
            asked(
                "memory",
                "4Gi",
                json!(null),
                json!([share("a", 1, "5Gi"), share("b", 2, "2Gi")]),
            ),
            "capacity memory has 3Gi left, 4Gi are needed; claim ns/a has 5Gi, claim ns/b has 2Gi",
            "1 of 1 device matches; it is short of capacity memory",
        ),
        (
            asked("memory", "3Gi", range, json!([])),
            "its policy does not offer 3Gi of capacity memory",
            "1 of 1 device matches; it is not offering the requested amount of capacity memory",
        ),
        (
            asked("cores", "3", json!(null), json!([])),
            "it has no capacity cores",
            "1 of 1 device matches; it is without capacity cores",
        ),
        (
            asked("memory", "11Gi", json!(null), json!([])),
            "capacity memory has 10Gi left, 11Gi are needed",
            "1 of 1 device matches; it is short of capacity memory",
        ),
    ] {
        assert_eq!(messages(&explanation, 0, 0), [message]);
        assert_eq!(explanation.claims[0].requests[0].summary, brief);
    }
}

#[test]
fn of_all_devices_those_without_the_capacity_are_none() {
    let all = json!({"allocationMode": "All", "capacity": {"requests": {"memory": "11Gi"}}});
    let claims = json!([claim("c", json!([ask("main", 1, all)]), json!([]))]);
    let explanation = explained(of(memory("10Gi", json!(null))), claims, json!([]));
    let request = &explanation.claims[0].requests[0];
    assert_eq!((request.matching, request.available), (0, 0));
    assert!(request.all && !explanation.fits);
    assert_eq!(
        explanation.claims[0].summary,
        "request main: none of 1 device matches: it is short of capacity memory"
    );
}

#[test]
fn pools_that_cannot_be_used_are_named_with_their_devices() {
    let slices = json!([
        slice("s", "p", 2, json!({"devices": plain(2)})),
        slice(
            "t",
            "q",
            1,
            json!({"devices": [device("x", json!({})), device("x", json!({}))]})
        ),
    ]);
    let claims = json!([claim("c", json!([ask("main", 1, json!({}))]), json!([]))]);
    let explanation = explained(slices, claims, json!([]));
    let incomplete = "the pool is incomplete: 1 of 2 slices are published";
    let invalid = "the pool is invalid: two devices are named x";
    let pools: Vec<(&str, usize, Option<&str>)> = explanation
        .pools
        .iter()
        .map(|pool| (pool.pool.as_str(), pool.devices, pool.problem.as_deref()))
        .collect();
    assert_eq!(pools, [("p", 2, Some(incomplete)), ("q", 2, Some(invalid))]);
    assert_eq!(explanation.pools[0].driver, DRIVER);
    assert_eq!(
        explanation.claims[0].requests[0].summary,
        format!(
            "none of 4 devices matches: 2 are not usable ({incomplete}), 2 are not usable ({invalid})"
        )
    );
    let report = &explanation.claims[0].requests[0].devices[0];
    assert_eq!(
        (
            report.driver.as_str(),
            report.pool.as_str(),
            report.device.as_str()
        ),
        (DRIVER, "p", "d0")
    );
    assert_eq!(messages(&explanation, 0, 0), [incomplete]);
}

#[test]
fn a_node_without_devices_is_reported() {
    let claims = json!([claim("c", json!([ask("main", 1, json!({}))]), json!([]))]);
    let explanation = explained(json!([]), claims.clone(), json!([]));
    assert_eq!(
        explanation.summary,
        "does not fit on node n1: no slice has a device for this node"
    );
    assert_eq!(
        explanation.claims[0].summary,
        "request main: the node has no devices"
    );
    let explanation = explained(
        of(vec![tainted(plain(1)[0].take())]),
        claims.clone(),
        json!([]),
    );
    assert_eq!(explanation.summary, "does not fit on node n1");
    let explanation = explained(of(plain(1)), claims, json!([]));
    assert_eq!(explanation.summary, "fits on node n1");
    assert_eq!(explanation.node, "n1");
    let report = &explanation.claims[0];
    assert_eq!(
        (
            report.claim.as_str(),
            report.uid.as_str(),
            report.summary.as_str()
        ),
        ("ns/c", "uid-c", "fits")
    );
    assert_eq!(
        (
            report.requests[0].request.as_str(),
            report.requests[0].class.as_str()
        ),
        ("main", "any")
    );
}

#[test]
fn a_claim_that_is_allocated_on_another_node_names_its_devices() {
    let mut other = held("h", json!([{"device": "d0"}, {"device": "d1"}]));
    other["status"]["allocation"]["nodeSelector"] = json!({"nodeSelectorTerms": [{"matchFields":
        [{"key": "metadata.name", "operator": "In", "values": ["other"]}]}]});
    let explanation = explained(of(plain(2)), json!([other]), json!([]));
    let summary = &explanation.claims[0].summary;
    assert!(!explanation.fits && summary.starts_with("is allocated on another node: "));
    assert!(
        summary.contains("/d0, ") && summary.ends_with("/d1"),
        "{summary}"
    );
}

#[test]
fn a_claim_that_is_allocated_has_nothing_to_explain() {
    let claims = json!([
        held("h", json!([{"device": "d0"}])),
        claim("c", json!([ask("main", 1, json!({}))]), json!([]))
    ]);
    let explanation = explained(of(plain(2)), claims, json!([]));
    assert!(explanation.claims[0].already_allocated && !explanation.claims[1].already_allocated);
    assert_eq!(explanation.claims[0].summary, "is already allocated");
    let allocated: Vec<bool> = explanation.claims[1].requests[0]
        .devices
        .iter()
        .map(|device| device.allocated)
        .collect();
    assert_eq!(allocated, [false, true]);
    assert_eq!(explanation.results.len(), 2);
}

#[test]
fn a_class_that_does_not_exist_is_an_error_of_its_request() {
    let request = ask("main", 1, json!({"deviceClassName": "none"}));
    let claims = json!([claim("c", json!([request]), json!([]))]);
    let explanation = explained(of(plain(1)), claims, json!([]));
    let what = "claim ns/c, request main: the device class \"none\" does not exist";
    assert_eq!(
        explanation.claims[0].requests[0].error.as_deref(),
        Some(what)
    );
    assert_eq!(
        explanation.summary,
        format!("nothing is allocated on node n1: {what}")
    );
}

// === Constraints ===

fn same(attribute: &str, requests: &[&str]) -> Value {
    json!({"matchAttribute": format!("{DRIVER}/{attribute}"), "requests": requests})
}

fn distinct(attribute: &str, requests: &[&str]) -> Value {
    json!({"distinctAttribute": format!("{DRIVER}/{attribute}"), "requests": requests})
}

/// As in the search, which compares the values of lists.
#[test]
fn an_empty_list_has_no_value_to_compare() {
    let devices = with("rails", &[json!({"ints": []}), json!({"ints": [1]})]);
    let requests = json!([ask("a", 1, json!({}))]);
    let claims = json!([claim("c", requests, json!([same("rails", &["a"])]))]);
    let gates = json!({"gates": ["DRAListTypeAttributes"]});
    let explanation = explained_with(of(devices), claims, json!([]), gates);
    assert_eq!(
        messages(&explanation, 0, 0),
        ["it has no value in the attribute gpu.example.com/rails, which a constraint compares"]
    );
    assert_eq!(messages(&explanation, 0, 1), [""; 0]);
}

#[test]
fn devices_among_too_few_with_the_same_value_are_rejected() {
    let claims = json!([claim(
        "c",
        json!([ask("main", 2, json!({}))]),
        json!([same("numa", &[])])
    )]);
    let explanation = explained(of(numa(&[0, 1, 2])), claims, json!([]));
    assert_eq!(
        messages(&explanation, 0, 1),
        ["with gpu.example.com/numa = 1, 1 device is available for request main, 2 are needed"]
    );
    assert_eq!(
        explanation.claims[0].summary,
        "no value of gpu.example.com/numa is shared by enough available devices"
    );
    assert_eq!(
        explanation.claims[0].requests[0].summary,
        "3 of 3 devices match; all are in too small a group with the same gpu.example.com/numa"
    );
    let report = &explanation.claims[0].constraints[0];
    assert_eq!(
        (report.attribute.as_str(), report.distinct),
        ("gpu.example.com/numa", false)
    );
    assert_eq!(report.requests, ["main"]);

    let claims = json!([claim(
        "c",
        json!([ask("main", 2, json!({}))]),
        json!([same("numa", &[])])
    )]);
    let explanation = explained(of(numa(&[0, 1, 1])), claims, json!([]));
    assert!(explanation.fits);
    let report = &explanation.claims[0].constraints[0];
    assert_eq!(report.problem, None);
    let values: Vec<(&str, usize)> = report
        .values
        .iter()
        .map(|value| (value.value.as_str(), value.devices.len()))
        .collect();
    assert_eq!(values, [("0", 1), ("1", 2)]);
    let request = &explanation.claims[0].requests[0];
    assert_eq!((request.matching, request.available), (3, 2));
    assert_eq!(messages(&explanation, 0, 1), [""; 0]);
}

#[test]
fn a_constraint_is_about_the_requests_that_it_names() {
    let requests = json!([
        ask("a", 1, json!({})),
        ask("b", 3, json!({})),
        ask("free", 1, json!({}))
    ]);
    let claims = json!([claim("c", requests, json!([same("numa", &["a", "b"])]))]);
    let mut devices = numa(&[0, 0, 1]);
    devices.push(device("bare", json!({})));
    let explanation = explained(of(devices), claims, json!([]));
    assert_eq!(explanation.claims[0].constraints[0].requests, ["a", "b"]);
    assert_eq!(
        messages(&explanation, 0, 0),
        ["with gpu.example.com/numa = 0, 2 devices are available for request b, 3 are needed"]
    );
    assert_eq!(
        messages(&explanation, 0, 3),
        ["it has no attribute gpu.example.com/numa, which a constraint compares"]
    );
    assert_eq!(messages(&explanation, 2, 0), [""; 0]);
    assert_eq!(messages(&explanation, 2, 3), [""; 0]);
    assert_eq!(
        explanation.claims[0].requests[1].summary,
        "4 of 4 devices match; 3 are in too small a group with the same gpu.example.com/numa, 1 is without attribute gpu.example.com/numa"
    );
}

#[test]
fn values_that_must_differ_are_counted() {
    let asked = |count, values: &[i64]| {
        let claims = json!([claim(
            "c",
            json!([ask("main", count, json!({}))]),
            json!([distinct("numa", &[])])
        )]);
        explained(of(numa(values)), claims, json!([]))
    };
    let explanation = asked(3, &[0, 0, 1, 1]);
    assert_eq!(
        explanation.claims[0].summary,
        "3 devices must differ in gpu.example.com/numa, but the available devices have only 2 different values"
    );
    assert!(explanation.claims[0].constraints[0].distinct);
    let explanation = asked(2, &[0, 0, 1, 1]);
    assert!(explanation.fits);
    assert_eq!(explanation.claims[0].constraints[0].problem, None);
    let requests = json!([ask("a", 1, json!({})), ask("b", 9, json!({}))]);
    let claims = json!([claim("c", requests, json!([distinct("numa", &["a"])]))]);
    let explanation = explained(of(numa(&[0])), claims, json!([]));
    assert_eq!(
        explanation.claims[0].constraints[0].problem, None,
        "b is not asked to differ"
    );
}

#[test]
fn an_alternative_that_escapes_a_constraint_keeps_it_from_being_a_problem() {
    let asked = |requests: &[&str]| {
        let claims = json!([claim(
            "c",
            json!([either(&[("big", 3), ("small", 2)])]),
            json!([same("numa", requests)])
        )]);
        explained(of(numa(&[0, 1])), claims, json!([]))
    };
    let problem =
        |explanation: &Explanation| explanation.claims[0].constraints[0].problem.is_some();
    let explanation = asked(&["main"]);
    assert!(problem(&explanation) && !explanation.fits);
    assert_eq!(
        explanation.claims[0].constraints[0].requests,
        ["main/big", "main/small"]
    );
    assert_eq!(
        messages(&explanation, 1, 0),
        ["with gpu.example.com/numa = 0, 1 device is available for request main/big, 3 are needed"]
    );
    let explanation = asked(&["main/big"]);
    assert!(!problem(&explanation) && explanation.fits);
    let claims = json!([claim(
        "c",
        json!([either(&[("big", 3), ("one", 1)])]),
        json!([same("numa", &["main"])])
    )]);
    let explanation = explained(of(numa(&[0, 1])), claims, json!([]));
    assert!(!problem(&explanation) && explanation.fits);
    let claims = json!([claim(
        "c",
        json!([either(&[("three", 3)])]),
        json!([distinct("numa", &[])])
    )]);
    assert!(!problem(&explained(of(numa(&[0])), claims, json!([]))));
}

#[test]
fn values_of_every_type_are_shown() {
    let values = [
        (json!({"string": "a"}), "a"),
        (json!({"int": 7}), "7"),
        (json!({"bool": true}), "true"),
        (json!({"version": "1.2.3"}), "1.2.3"),
        (json!({"ints": [1]}), "(a list)"),
    ];
    for (value, shown) in values {
        let claims = json!([claim(
            "c",
            json!([ask("main", 1, json!({}))]),
            json!([same("x", &[])])
        )]);
        let explanation = explained(of(with("x", &[value])), claims, json!([]));
        assert_eq!(explanation.claims[0].constraints[0].values[0].value, shown);
    }
}

/// Values are in the order of their text, those of one device in the order of their type.
#[test]
fn lists_are_shown_by_value_with_their_devices() {
    let lists = [[9, 10], [10, 11], [7, 8]].map(|list| json!({"ints": list}));
    let claims = json!([claim(
        "c",
        json!([ask("main", 2, json!({})), ask("more", 3, json!({}))]),
        json!([same("x", &[])])
    )]);
    let gates = json!({"gates": ["DRAListTypeAttributes"]});
    let explanation = explained_with(of(with("x", &lists)), claims, json!([]), gates);
    let values: Vec<(&str, String)> = explanation.claims[0].constraints[0]
        .values
        .iter()
        .map(|value| (value.value.as_str(), value.devices.join(" ")))
        .collect();
    let shown = [
        ("10", "d0 d1"),
        ("11", "d1"),
        ("7", "d2"),
        ("8", "d2"),
        ("9", "d0"),
    ];
    assert_eq!(
        values,
        shown.map(|(value, devices)| (value, devices.to_owned()))
    );
    let few = "1 device is available for request main, 2 are needed";
    assert_eq!(
        messages(&explanation, 0, 0),
        [format!(
            "with {DRIVER}/x = 9, {few}; with {DRIVER}/x = 10, 2 devices are available for request more, 3 are needed"
        )]
    );
    assert_eq!(
        explanation.claims[0].summary,
        format!("no value of {DRIVER}/x is shared by enough available devices")
    );
}

#[test]
fn devices_of_one_name_in_two_pools_are_shown_with_their_pool() {
    let of_pool = |pool: &str, names: &[&str]| {
        let devices: Vec<Value> = names
            .iter()
            .map(|name| device(name, json!({"x": {"int": 1}})))
            .collect();
        slice(pool, pool, 1, json!({"devices": devices}))
    };
    let slices = json!([of_pool("p", &["a", "b"]), of_pool("q", &["a"])]);
    let requests = json!([ask("main", 1, json!({})), ask("more", 1, json!({}))]);
    let claims = json!([claim("c", requests, json!([same("x", &[])]))]);
    let explanation = explained(slices, claims, json!([]));
    assert_eq!(
        explanation.claims[0].constraints[0].values[0].devices,
        ["gpu.example.com/p/a", "b", "gpu.example.com/q/a"]
    );
}

// === Deadline ===

#[test]
fn an_explanation_that_takes_too_long_is_incomplete_and_keeps_the_verdict() {
    let allocated = held("h", json!([{"device": "d0"}]));
    for (count, fits) in [(1, true), (3, false)] {
        let requests = json!([ask("main", count, json!({}))]);
        let pending = claim("c", requests, json!([same("numa", &[])]));
        let claims = json!([pending, allocated]);
        let late = Limits {
            deadline_ms: 0,
            ..Limits::default()
        };
        let explanation = question(of(numa(&[0, 1])), claims, json!([]), json!({})).explain(late);
        assert_eq!((explanation.fits, &explanation.error), (fits, &None));
        let report = &explanation.claims[0];
        assert!(
            report
                .summary
                .starts_with("is not explained completely: no result within 0 ms"),
            "{}",
            report.summary
        );
        assert!(report.requests.is_empty() && report.constraints.is_empty());
        assert_eq!(explanation.claims[1].summary, "is already allocated");
    }
}

// === Together ===

fn together(slices: Value, claims: Vec<Value>) -> Vec<String> {
    let explanation = explained(slices, json!(claims), json!([]));
    assert!(!explanation.fits);
    explanation
        .claims
        .into_iter()
        .map(|claim| claim.summary)
        .collect()
}

#[test]
fn joint_and_single_conflicts_are_distinguished() {
    let one = || ask("one", 1, json!({}));
    let two = || ask("two", 1, json!({}));
    let alone = "each has enough devices individually, but not in combination";
    let enough = "has enough devices for each request";
    assert_eq!(
        together(
            of(plain(1)),
            vec![claim("a", json!([one(), two()]), json!([]))]
        ),
        [format!(
            "request two does not fit together with the earlier requests: {alone}"
        )]
    );
    assert_eq!(
        together(
            of(plain(1)),
            vec![
                claim("a", json!([one()]), json!([])),
                claim("b", json!([two()]), json!([]))
            ]
        ),
        [
            enough.to_owned(),
            format!("request two does not fit together with the earlier claims: {alone}")
        ]
    );
    assert_eq!(
        together(
            of(plain(2)),
            vec![
                claim("a", json!([one()]), json!([])),
                claim("b", json!([one(), two()]), json!([])),
                claim("c", json!([one()]), json!([]))
            ]
        ),
        [
            enough.to_owned(),
            format!(
                "request two does not fit together with the earlier claims and requests: {alone}"
            ),
            enough.to_owned()
        ]
    );
    let mut halves = card();
    halves[0]["spec"]["devices"].as_array_mut().unwrap().pop();
    assert_eq!(
        together(
            halves,
            vec![claim("a", json!([ask("main", 3, json!({}))]), json!([]))]
        ),
        [
            "request main has enough devices individually, but not in combination: they share counters, capacity or a constraint"
        ]
    );
}

#[test]
fn the_first_request_of_several_that_cannot_be_had_is_named() {
    let mut halves = card();
    halves[0]["spec"]["devices"].as_array_mut().unwrap().pop();
    let requests = json!([ask("many", 3, json!({})), ask("one", 1, json!({}))]);
    let alone = "each has enough devices individually, but not in combination";
    assert_eq!(
        together(halves, vec![claim("a", requests, json!([]))]),
        [format!("request many does not fit: {alone}")]
    );
}

#[test]
fn constraints_of_requests_that_come_later_do_not_blame_an_earlier_one() {
    let requests = json!([ask("a", 1, json!({})), ask("b", 1, json!({}))]);
    let constraints = json!([same("numa", &["a", "b"]), distinct("numa", &["b", "a"])]);
    let alone = "each has enough devices individually, but not in combination";
    assert_eq!(
        together(of(numa(&[0, 1])), vec![claim("c", requests, constraints)]),
        [format!(
            "request b does not fit together with the earlier requests: {alone}"
        )]
    );
}

#[test]
fn alternatives_that_all_lack_devices_are_reported() {
    assert_eq!(
        together(
            of(plain(1)),
            vec![claim(
                "c",
                json!([either(&[("big", 3), ("small", 2)])]),
                json!([])
            )]
        ),
        ["no alternative fits"]
    );
    let explanation = explained(
        of(plain(1)),
        json!([claim(
            "c",
            json!([either(&[("big", 3), ("small", 1)])]),
            json!([])
        )]),
        json!([]),
    );
    assert!(explanation.fits);
    let requests = &explanation.claims[0].requests;
    assert!(requests.iter().all(|request| request.alternative));
    assert!(!requests[0].devices[0].allocated && requests[1].devices[0].allocated);
}
