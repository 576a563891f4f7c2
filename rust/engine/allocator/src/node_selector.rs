//! Node selectors with the semantics of Kubernetes' node affinity.
//!
//! A selector with an invalid term is an error even if another term matches.

use std::collections::BTreeMap;

use dra_api::{Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

const MAX_PREFIX_BYTES: usize = 253;
const MAX_NAME_BYTES: usize = 63;

/// Whether the selector matches the node. Terms are alternatives; an empty term matches no node.
pub(crate) fn matches(selector: &NodeSelector, node: &Node) -> Result<bool, String> {
    let terms = || {
        selector
            .node_selector_terms
            .iter()
            .filter(|term| !term.match_expressions.is_empty() || !term.match_fields.is_empty())
    };
    for term in terms() {
        check(term)?;
    }
    Ok(terms().any(|term| selects(term, node)))
}

fn check(term: &NodeSelectorTerm) -> Result<(), String> {
    term.match_expressions.iter().try_for_each(check_label)?;
    term.match_fields.iter().try_for_each(check_field)
}

fn check_label(requirement: &NodeSelectorRequirement) -> Result<(), String> {
    let NodeSelectorRequirement {
        key,
        operator,
        values,
    } = requirement;
    if !is_label_key(key) {
        return Err(format!("{key:?} is not a label key"));
    }
    match operator.as_str() {
        "In" | "NotIn" if values.is_empty() => {
            return Err(format!("{key}: operator {operator} needs a value"));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            return Err(format!("{key}: operator {operator} takes no value"));
        }
        "Gt" | "Lt" if values.len() != 1 || values[0].parse::<i64>().is_err() => {
            return Err(format!("{key}: operator {operator} needs one whole number"));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        _ => return Err(format!("{key}: unknown operator {operator:?}")),
    }
    match values.iter().find(|value| !is_label_value(value)) {
        Some(value) => Err(format!("{key}: {value:?} is not a label value")),
        None => Ok(()),
    }
}

fn check_field(requirement: &NodeSelectorRequirement) -> Result<(), String> {
    let key = &requirement.key;
    match requirement.operator.as_str() {
        "In" | "NotIn" if requirement.values.len() == 1 => Ok(()),
        "In" | "NotIn" => Err(format!("field {key}: there must be exactly one value")),
        operator => Err(format!(
            "field {key}: operator {operator:?} is not supported for fields"
        )),
    }
}

fn selects(term: &NodeSelectorTerm, node: &Node) -> bool {
    let labels = term
        .match_expressions
        .iter()
        .all(|requirement| label_holds(requirement, &node.metadata.labels));
    // A node without a name has no fields; Kubernetes then ignores field requirements.
    labels
        && (node.metadata.name.is_empty()
            || term
                .match_fields
                .iter()
                .all(|requirement| field_holds(requirement, &node.metadata.name)))
}

fn label_holds(requirement: &NodeSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let value = labels.get(&requirement.key);
    let numbers = || {
        let bound: i64 = requirement.values.first()?.parse().ok()?;
        Some((value?.parse::<i64>().ok()?, bound))
    };
    match requirement.operator.as_str() {
        "In" => value.is_some_and(|value| requirement.values.contains(value)),
        "NotIn" => value.is_none_or(|value| !requirement.values.contains(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(value, bound)| value > bound),
        "Lt" => numbers().is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

/// Whether a field requirement matches. An unknown field is empty.
fn field_holds(requirement: &NodeSelectorRequirement, node_name: &str) -> bool {
    let value = if requirement.key == "metadata.name" {
        node_name
    } else {
        ""
    };
    let equal = requirement.values.iter().any(|expected| expected == value);
    equal == (requirement.operator == "In")
}

fn is_label_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => {
            !prefix.is_empty()
                && prefix.len() <= MAX_PREFIX_BYTES
                && prefix.split('.').all(is_dns_label)
                && is_label_name(name)
        }
        None => is_label_name(key),
    }
}

fn is_dns_label(label: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = label.as_bytes();
    bytes.first().is_some_and(|byte| inner(*byte))
        && bytes.last().is_some_and(|byte| inner(*byte))
        && bytes.iter().all(|byte| inner(*byte) || *byte == b'-')
}

fn is_label_name(name: &str) -> bool {
    !name.is_empty() && is_label_value(name)
}

fn is_label_value(value: &str) -> bool {
    let bytes = value.as_bytes();
    value.len() <= MAX_NAME_BYTES
        && bytes.first().is_none_or(u8::is_ascii_alphanumeric)
        && bytes.last().is_none_or(u8::is_ascii_alphanumeric)
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}
