//! Names of slices: they start with the index in hexadecimal, so that the scheduler reads slices in the order of their
//! names.
//!
//! The scheme is that of Kubernetes' helper since 1.36, so that each can adopt the slices of the other.

use dra_api::ObjectMeta;

use crate::inventory::{Inventory, Naming};

/// Digits of an index, enough for a million slices.
const INDEX_DIGITS: usize = 5;

/// Returns the metadata of a new slice.
pub(crate) fn metadata(index: usize, pool: &str, inventory: &Inventory) -> ObjectMeta {
    let base = format!(
        "{index:0INDEX_DIGITS$x}-{}-{}",
        inventory.driver.to_lowercase(),
        inventory.node
    );
    // Everything after the node, because pools of one node may differ only in the middle: "n1/a100/gpu", "n1/l40s/gpu".
    let pool_type = pool
        .strip_prefix(&inventory.node)
        .and_then(|rest| rest.strip_prefix('/'))
        .unwrap_or(pool)
        .replace('/', "-");
    let (name, generate_name) = match inventory.naming {
        Naming::Generated => (String::new(), format!("{base}-")),
        Naming::Fixed if pool_type == inventory.node => (base, String::new()),
        Naming::Fixed => (format!("{base}-{pool_type}"), String::new()),
    };
    ObjectMeta {
        name,
        generate_name,
        owner_references: inventory.owner.iter().cloned().collect(),
        ..Default::default()
    }
}

/// Returns the index in a slice's name or, for a new slice, in its `generateName`.
pub(crate) fn index(metadata: &ObjectMeta) -> Option<usize> {
    let name = if metadata.name.is_empty() {
        &metadata.generate_name
    } else {
        &metadata.name
    };
    let (digits, _) = name.split_once('-')?;
    let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if digits.len() != INDEX_DIGITS || !digits.bytes().all(lower) {
        return None;
    }
    usize::from_str_radix(digits, 16).ok()
}
