//! A question to the allocator as tests/allocator records it: a cluster, a node of it, and claims.

#![allow(clippy::unwrap_used, dead_code)]

use dra_allocator::{Cluster, Explanation, Gates, Limits, Options, Response};
use serde_json::{Value, json};

pub(crate) struct Question {
    cluster: Cluster,
    node: String,
    claims: Vec<u8>,
}

impl Question {
    /// Reads `node` (a name or a Node), `classes`, `slices`, `claims`, and perhaps `allocated` claims and `gates`.
    pub(crate) fn new(question: &Value) -> Self {
        let bytes = |value: &Value| serde_json::to_vec(value).unwrap();
        let list = |name: &str| question.get(name).cloned().unwrap_or_else(|| json!([]));
        let gates: Vec<String> = serde_json::from_value(list("gates")).unwrap();
        let gates = Gates::named(gates.iter().map(String::as_str)).unwrap();
        let cluster = Cluster::with_gates(gates);
        let node = &question["node"];
        if node.is_object() {
            cluster.update_nodes(&bytes(node)).unwrap();
        }
        cluster.update_classes(&bytes(&list("classes"))).unwrap();
        cluster
            .update_slices(&bytes(&list("slices")), true)
            .unwrap();
        cluster.hold(&bytes(&list("allocated")), true).unwrap();
        let name = node.pointer("/metadata/name").unwrap_or(node);
        Self {
            cluster,
            node: name.as_str().unwrap().to_owned(),
            claims: bytes(&list("claims")),
        }
    }

    pub(crate) fn allocate(&self, limits: Limits) -> Response {
        let options = Options {
            limits,
            ..Options::default()
        };
        self.cluster
            .allocate(&self.node, &self.claims, options)
            .unwrap()
    }

    pub(crate) fn explain(&self, limits: Limits) -> Explanation {
        let options = Options {
            limits,
            ..Options::default()
        };
        self.cluster
            .explain(&self.node, &self.claims, options)
            .unwrap()
    }
}

/// The limits of a search that prunes after so many failed attempts.
pub(crate) fn pruning_after(attempts: u64) -> Limits {
    Limits {
        attempts_before_pruning: attempts,
        ..Limits::default()
    }
}
