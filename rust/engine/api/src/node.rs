//! Nodes, and the selectors of nodes on which a device can be used.

use crate::codec::object;
use crate::meta::ObjectMeta;

object! {
    Node {
        api_version: String,
        kind: String,
        metadata: ObjectMeta,
        status: NodeStatus,
    }
}

object! {
    NodeStatus {
        /// Features that the kubelet declares.
        declared_features: Vec<String>,
    }
}

object! {
    /// Terms are alternatives.
    NodeSelector {
        node_selector_terms: Vec<NodeSelectorTerm>,
    }
}

object! {
    /// All requirements must hold. A term without any matches no node.
    NodeSelectorTerm {
        match_expressions: Vec<NodeSelectorRequirement>,
        match_fields: Vec<NodeSelectorRequirement>,
    }
}

object! {
    NodeSelectorRequirement {
        key: String,
        /// `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt` or `Lt`.
        operator: String,
        values: Vec<String>,
    }
}

impl NodeSelector {
    /// The selector that names one node, as the scheduler writes it into an allocation.
    pub fn of_node(name: &str) -> Self {
        let requirement = NodeSelectorRequirement {
            key: "metadata.name".to_owned(),
            operator: "In".to_owned(),
            values: vec![name.to_owned()],
        };
        Self {
            node_selector_terms: vec![NodeSelectorTerm {
                match_fields: vec![requirement],
                ..Default::default()
            }],
        }
    }
}
