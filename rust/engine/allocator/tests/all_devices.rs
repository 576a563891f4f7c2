//! All devices of a node: they are allocated in order, and the first that cannot be allocated determines the result.

#![allow(clippy::unwrap_used)]

mod question;

use question::{Question, pruning_after};
use serde_json::json;

/// The first claim takes one of three devices, so the second cannot have all of them. With `d2` in use, the second claim
/// reaches `d1` first, whose value differs: an error. `d0` has the value of `d2` and causes none.
#[test]
fn pruning_finds_an_error_that_depends_on_the_order_of_equal_devices() {
    let device =
        |name: &str, numa: i64| json!({"name": name, "attributes": {"numa": {"int": numa}}});
    let claim = |name: &str, mode: &str, constraints: serde_json::Value| {
        let exactly = json!({"deviceClassName": "any", "allocationMode": mode});
        json!({
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"devices": {
                "requests": [{"name": "r", "exactly": exactly}],
                "constraints": constraints,
            }},
        })
    };
    let query = Question::new(&json!({
        "node": "n",
        "classes": [{"metadata": {"name": "any"}, "spec": {}}],
        "claims": [
            claim("one", "ExactCount", json!([])),
            claim("all", "All", json!([{"matchAttribute": "d.example.com/numa"}])),
        ],
        "slices": [{
            "metadata": {"name": "s"},
            "spec": {
                "driver": "d.example.com", "nodeName": "n",
                "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
                "devices": [device("d0", 0), device("d1", 1), device("d2", 0)],
            },
        }],
    }));
    for attempts in [u64::MAX, 0] {
        let response = query.allocate(pruning_after(attempts));
        let error = response.error.unwrap_or_default();
        assert!(
            error.contains("device d.example.com/p/d1 violates the constraint"),
            "pruning after {attempts} attempts: {error:?}"
        );
    }
}
