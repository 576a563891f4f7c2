//! Values of a type that this version does not know, under a constraint.

#![allow(clippy::unwrap_used)]

mod question;

use question::{Question, pruning_after};
use serde_json::json;

/// The first device of a constraint is accepted with any value, as by kube-scheduler (`matchesAttribute` in
/// k8s.io/dynamic-resource-allocation v0.37.2, structured/internal/incubating/constraint.go). So the order of devices
/// matters, and equal devices are not interchangeable. Found by fuzzing.
#[test]
fn pruning_finds_an_allocation_that_starts_with_a_value_of_unknown_type() {
    let device =
        |name: &str, value: serde_json::Value| json!({"name": name, "attributes": {"root": value}});
    let query = Question::new(&json!({
        "node": "n",
        "classes": [{"metadata": {"name": "any"}, "spec": {}}],
        "claims": [{
            "metadata": {"name": "c", "namespace": "default", "uid": "u"},
            "spec": {"devices": {
                "requests": [{"name": "r", "exactly": {"deviceClassName": "any", "count": 3}}],
                "constraints": [{"distinctAttribute": "d.example.com/root"}],
            }},
        }],
        "slices": [{
            "metadata": {"name": "s"},
            "spec": {
                "driver": "d.example.com", "nodeName": "n",
                "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
                "devices": [
                    device("d0", json!({"string": "a"})),
                    device("d1", json!({"ofLaterVersion": "x"})),
                    device("d2", json!({"string": "b"})),
                    device("d3", json!({"string": "a"})),
                ],
            },
        }],
    }));
    for attempts in [u64::MAX, 0] {
        let response = query.allocate(pruning_after(attempts));
        let names: Vec<_> = response
            .results
            .iter()
            .flat_map(|result| &result.devices.results)
            .map(|result| result.device.as_str())
            .collect();
        assert_eq!(
            names,
            ["d1", "d2", "d3"],
            "pruning after {attempts} attempts: {:?}",
            response.error
        );
    }
}
