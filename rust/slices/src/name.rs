//! Names of slices: the index first, in hexadecimal, so that the order of names is the order of the scheduler.
//!
//! The scheme is that of Kubernetes' own helper since 1.36, so that each adopts the other's slices.

use dra_api::ObjectMeta;

use crate::inventory::{Inventory, Naming};

/// Digits of an index; more than a million slices have no use for this order.
const WIDTH: usize = 5;

/// The metadata of a slice that does not exist yet.
pub(crate) fn metadata(index: usize, pool: &str, inventory: &Inventory) -> ObjectMeta {
    let base = format!(
        "{index:0WIDTH$x}-{}-{}",
        inventory.driver.to_lowercase(),
        inventory.node
    );
    let family = pool.rsplit('/').next().unwrap_or(pool);
    let (name, generate_name) = match inventory.naming {
        Naming::Generated => (String::new(), format!("{base}-")),
        Naming::Fixed if family == inventory.node => (base, String::new()),
        Naming::Fixed => (format!("{base}-{family}"), String::new()),
    };
    ObjectMeta {
        name,
        generate_name,
        owner_references: inventory.owner.iter().cloned().collect(),
        ..Default::default()
    }
}

/// The index in a slice's name, or in the start of the name that it is to have.
pub(crate) fn index(metadata: &ObjectMeta) -> Option<usize> {
    let name = if metadata.name.is_empty() {
        &metadata.generate_name
    } else {
        &metadata.name
    };
    let (digits, _) = name.split_once('-')?;
    let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if digits.len() != WIDTH || !digits.bytes().all(lower) {
        return None;
    }
    usize::from_str_radix(digits, 16).ok()
}
