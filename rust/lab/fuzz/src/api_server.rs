//! A model of an API server that applies writes of slices.

use std::collections::BTreeSet;

use dra_api::ResourceSlice;
use dra_slices::{Operation, Write};

/// Applies the writes in their order. Panics if a write refers to a missing slice, or creates an existing one.
pub(crate) fn apply(writes: &[Write], published: &mut Vec<ResourceSlice>) {
    let mut created = 0;
    for write in writes {
        let mut slice = write.slice.clone();
        assert!(!write.reason.is_empty(), "a write without a reason");
        let at = published
            .iter()
            .position(|other| other.metadata.name == slice.metadata.name);
        match (write.op, at) {
            (Operation::Create, None) => {
                while slice.metadata.name.is_empty()
                    || published
                        .iter()
                        .any(|other| other.metadata.name == slice.metadata.name)
                {
                    created += 1;
                    slice.metadata.name = format!("{}x{created:04}", slice.metadata.generate_name);
                }
                published.push(slice);
            }
            (Operation::Update, Some(at)) => published[at] = slice,
            (Operation::Delete, Some(at)) => drop(published.remove(at)),
            (op, at) => panic!("{op:?} of {:?}, which is at {at:?}", slice.metadata.name),
        }
    }
    published.sort_by(|left, right| left.metadata.name.cmp(&right.metadata.name));
}

/// Removes slices with a duplicate or an empty name, which an API server cannot have.
pub(crate) fn distinct(slices: Vec<ResourceSlice>) -> Vec<ResourceSlice> {
    let mut names = BTreeSet::new();
    let named = slices
        .into_iter()
        .filter(|slice| !slice.metadata.name.is_empty());
    named
        .filter(|slice| names.insert(slice.metadata.name.clone()))
        .collect()
}
