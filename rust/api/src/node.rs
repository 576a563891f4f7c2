//! Nodes, and the selectors that say on which nodes a device can be used.

use std::collections::BTreeMap;

use crate::meta::ObjectMeta;
use crate::object::object;

object! {
    Node {
        api_version: String,
        kind: String,
        metadata: ObjectMeta,
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

    /// Whether `node` is one of those selected.
    pub fn matches(&self, node: &Node) -> bool {
        self.node_selector_terms
            .iter()
            .any(|term| term.matches(node))
    }
}

impl NodeSelectorTerm {
    fn matches(&self, node: &Node) -> bool {
        if self.match_expressions.is_empty() && self.match_fields.is_empty() {
            return false;
        }
        let fields = BTreeMap::from([("metadata.name".to_owned(), node.metadata.name.clone())]);
        let labels = &node.metadata.labels;
        self.match_expressions
            .iter()
            .all(|requirement| requirement.matches(labels))
            && self
                .match_fields
                .iter()
                .all(|requirement| requirement.matches(&fields))
    }
}

impl NodeSelectorRequirement {
    fn matches(&self, values: &BTreeMap<String, String>) -> bool {
        let value = values.get(&self.key);
        match self.operator.as_str() {
            "In" => value.is_some_and(|value| self.values.contains(value)),
            "NotIn" => value.is_none_or(|value| !self.values.contains(value)),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            "Gt" => self
                .compare(value)
                .is_some_and(|(value, bound)| value > bound),
            "Lt" => self
                .compare(value)
                .is_some_and(|(value, bound)| value < bound),
            _ => false,
        }
    }

    fn compare(&self, value: Option<&String>) -> Option<(i64, i64)> {
        let [bound] = self.values.as_slice() else {
            return None;
        };
        Some((value?.parse().ok()?, bound.parse().ok()?))
    }
}
