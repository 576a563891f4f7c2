use proptest::prelude::*;
use serde_json::json;

use super::*;

fn errors(object: Value) -> Vec<String> {
    validate_object(&object)
        .errors
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn claim(requests: Value) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": "ResourceClaim",
        "metadata": {"name": "one"},
        "spec": {"devices": {"requests": requests}},
    })
}

fn slice(device: Value) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": "ResourceSlice",
        "metadata": {"name": "one"},
        "spec": {
            "driver": "dra-agent.internal", "nodeName": "node-1",
            "pool": {"name": "node-1/gpu", "generation": 1, "resourceSliceCount": 1},
            "devices": [device],
        },
    })
}

#[test]
fn a_good_claim_has_no_errors_and_lists_its_expressions() {
    let result = validate_object(&claim(json!([
        {"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": 2,
         "selectors": [{"cel": {"expression": "device.driver == 'x'"}}]}},
        {"name": "nic", "firstAvailable": [{"name": "fast", "deviceClassName": "nic"}]},
    ])));
    assert_eq!(result.errors, []);
    assert_eq!(
        result.expressions,
        [Expression {
            field: "spec.devices.requests[0].exactly.selectors[0].cel.expression".into(),
            text: "device.driver == 'x'".into(),
        }]
    );
}

#[test]
fn every_error_is_reported_with_its_field() {
    assert_eq!(
        errors(claim(json!([
            {"name": "Big", "exactly": {"deviceClassName": "gpu", "count": -1, "allocationMod": "All"}},
            {"name": "all", "exactly": {"deviceClassName": "gpu", "count": 1, "allocationMode": "All"}},
            {"name": "all"},
        ]))),
        [
            "spec.devices.requests[0].exactly.allocationMod: unknown field; did you mean \"allocationMode\"?",
            "spec.devices.requests[0].name: \"Big\" is not a DNS label (at most 63 of a-z, 0-9 and -, with a letter or digit first and last)",
            "spec.devices.requests[0].exactly.count: must be greater than 0, is -1",
            "spec.devices.requests[1].exactly.count: must be left out when allocationMode is All",
            "spec.devices.requests[2]: needs one of exactly and firstAvailable",
            "spec.devices.requests[2]: \"all\" is there twice",
        ]
    );
}

#[test]
fn a_value_of_the_wrong_type_names_its_field() {
    assert_eq!(
        errors(claim(
            json!([{"name": "a", "exactly": {"deviceClassName": "gpu", "count": "two"}}])
        )),
        ["spec.devices.requests[0].exactly.count: must be a whole number, is a string"]
    );
    assert_eq!(
        errors(slice(
            json!({"name": "d", "capacity": {"memory": {"value": "80 GB"}}})
        )),
        [
            "spec.devices[0].capacity[memory].value: \"80 GB\" is not a quantity: write a number and a suffix, such as \"40Gi\", \"1.5\" or \"500m\""
        ]
    );
}

#[test]
fn a_value_of_the_wrong_type_hides_no_other_error() {
    assert_eq!(
        errors(claim(
            json!([{"name": "A", "exactly": {"deviceClassName": 5, "count": -1}}])
        )),
        [
            "spec.devices.requests[0].exactly.deviceClassName: must be a string, is a number",
            "spec.devices.requests[0].name: \"A\" is not a DNS label (at most 63 of a-z, 0-9 and -, with a letter or digit first and last)",
            "spec.devices.requests[0].exactly.count: must be greater than 0, is -1",
        ]
    );
}

fn any_json() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec![
        "spec",
        "metadata",
        "devices",
        "requests",
        "exactly",
        "name",
        "count",
        "selectors",
        "cel",
        "expression",
        "attributes",
        "capacity",
        "value",
        "sharedCounters",
        "counters",
        "taints",
        "status",
        "allocation",
        "x",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z.\\[\\]/-]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 40, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(names.clone().prop_map(str::to_owned), inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_json_is_judged_and_never_called_unreadable(body in any_json(), kind in prop::sample::select(KINDS.to_vec())) {
        let mut object = if body.is_object() { body } else { json!({"spec": body}) };
        object["apiVersion"] = json!(API_VERSION);
        object["kind"] = json!(kind);
        let errors = validate_object(&object).errors;
        prop_assert!(errors.iter().all(|error| !error.field.is_empty()), "{errors:?}");
    }
}

#[test]
fn the_kind_and_the_version_are_checked() {
    assert_eq!(
        errors(json!({"apiVersion": "resource.k8s.io/v1beta1", "kind": "Pod"})),
        [
            "apiVersion: is \"resource.k8s.io/v1beta1\"; only resource.k8s.io/v1 is read",
            "kind: is \"Pod\"; known kinds: DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice",
        ]
    );
}

#[test]
fn limits_of_a_device() {
    let many: serde_json::Map<String, Value> = (0..33)
        .map(|n| (format!("a{n}"), json!({"int": n})))
        .collect();
    let cases = [
        (
            json!({"name": "d", "attributes": many}),
            "spec.devices[0]: has 33 attributes and capacities, the limit is 32",
        ),
        (
            json!({"name": "d", "attributes": {"a": {"string": "x".repeat(65)}}}),
            "spec.devices[0].attributes[a].string: has 65 bytes, the limit is 64",
        ),
        (
            json!({"name": "d", "attributes": {"a": {"int": 1, "bool": true}}}),
            "spec.devices[0].attributes[a]: must have exactly one value, has 2",
        ),
        (
            json!({"name": "d", "taints": [{"key": "a/b", "effect": "Never"}]}),
            "spec.devices[0].taints[0].effect: \"Never\" is not one of None, NoSchedule, NoExecute",
        ),
        (
            json!({"name": "d", "nodeName": "x"}),
            "spec.devices[0]: has nodeName, nodeSelector or allNodes, which need perDeviceNodeSelection in the slice",
        ),
        (
            json!({"name": "d", "capacity": {"m": {"value": "1", "requestPolicy": {}}}}),
            "spec.devices[0].capacity[m].requestPolicy: needs allowMultipleAllocations: true",
        ),
        (
            json!({"name": "d", "bindingConditions": ["a"]}),
            "spec.devices[0]: has only one of bindingConditions and bindingFailureConditions; it needs both or none",
        ),
    ];
    for (device, wanted) in cases {
        assert_eq!(errors(slice(device)), [wanted]);
    }
}

#[test]
fn versions_are_strict() {
    for (version, good) in [
        ("1.2.3-a.1+b", true),
        ("v1.2.3", false),
        ("1.2", false),
        ("01.2.3", false),
    ] {
        let found = errors(slice(
            json!({"name": "d", "attributes": {"v": {"version": version}}}),
        ));
        assert_eq!(found.is_empty(), good, "{version}: {found:?}");
    }
}

#[test]
fn names_of_attributes() {
    for (name, good) in [
        ("memory", true),
        ("resource.kubernetes.io/pcieRoot", true),
        ("a-b", false),
        ("a/b/c", false),
        ("/b", false),
        ("9a", false),
        ("a23456789012345678901234567890123", false),
    ] {
        let found = errors(slice(
            json!({"name": "d", "attributes": {name: {"int": 1}}}),
        ));
        assert_eq!(found.is_empty(), good, "{name}: {found:?}");
    }
}

#[test]
fn ranges_of_capacity() {
    let shared = |range: Value, default: &str| {
        errors(slice(json!({
            "name": "d", "allowMultipleAllocations": true,
            "capacity": {"m": {"value": "80Gi", "requestPolicy": {"default": default, "validRange": range}}},
        })))
    };
    assert!(shared(json!({"min": "1Gi", "step": "1Gi"}), "1Gi").is_empty());
    assert!(shared(json!({"min": "0.5", "step": "0.25", "max": "2"}), "1").is_empty());
    for (range, default) in [
        (json!({"min": "1Gi", "max": "81Gi"}), "1Gi"),
        (json!({"min": "2Gi"}), "1Gi"),
        (json!({"min": "1Gi", "step": "80Gi"}), "1Gi"),
        (json!({"min": "1Gi", "step": "1Gi"}), "1536Mi"),
        (json!({"min": "1", "step": "0.0001"}), "1"),
        (json!({"min": "1", "step": "0"}), "1"),
        (json!({"max": "1"}), "1"),
    ] {
        assert_eq!(
            shared(range.clone(), default).len(),
            1,
            "{range} {default}: {:?}",
            shared(range.clone(), default)
        );
    }
}

#[test]
fn sixty_four_devices_where_one_has_a_taint() {
    let devices = |count: usize, taint: bool| {
        let mut slice = slice(json!({}));
        slice["spec"]["devices"] = (0..count)
            .map(|n| match taint && n == 0 {
                true => {
                    json!({"name": format!("d{n}"), "taints": [{"key": "a", "effect": "None"}]})
                }
                false => json!({"name": format!("d{n}")}),
            })
            .collect();
        errors(slice)
    };
    assert!(devices(128, false).is_empty());
    assert!(devices(64, true).is_empty());
    assert_eq!(
        devices(65, true),
        ["spec.devices: has 65 entries, the limit is 64"]
    );
    assert_eq!(
        devices(129, false),
        ["spec.devices: has 129 entries, the limit is 128"]
    );
}

#[test]
fn references_between_the_parts_of_a_claim() {
    let mut object =
        claim(json!([{"name": "a", "firstAvailable": [{"name": "b", "deviceClassName": "c"}]}]));
    object["spec"]["devices"]["constraints"] = json!([
        {"requests": ["a", "a/b"], "matchAttribute": "resource.kubernetes.io/pcieRoot"},
        {"requests": ["a/c"], "matchAttribute": "pcieRoot"},
    ]);
    object["spec"]["devices"]["config"] =
        json!([{"opaque": {"driver": "d.example.com", "parameters": [1]}}]);
    assert_eq!(
        errors(object),
        [
            "spec.devices.constraints[1].requests[0]: \"a/c\" is not a request of this claim (or request/subrequest)",
            "spec.devices.constraints[1].matchAttribute: \"pcieRoot\" needs its domain, such as \"resource.kubernetes.io/pcieRoot\"",
            "spec.devices.config[0].opaque.parameters: must be an object",
        ]
    );
}
