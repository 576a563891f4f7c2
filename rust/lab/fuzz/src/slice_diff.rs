//! The writes that change published slices to desired slices.

use std::time::Duration;

use dra_api::ResourceSlice;
use dra_slices::{Operation, diff};
use serde::Deserialize;

use crate::Target;
use crate::api_server::{apply, distinct};
use crate::json::{check_round_trip, read};

pub const TARGET: Target = Target {
    name: "slice_diff",
    check,
    heap_bytes: 64 << 20,
    cpu: Duration::from_secs(5),
};

#[derive(Deserialize)]
struct Input {
    #[serde(default)]
    desired: Vec<ResourceSlice>,
    #[serde(default)]
    published: Vec<ResourceSlice>,
}

fn check(data: &[u8]) {
    let Some(Input { desired, published }) = read(data) else {
        return;
    };
    let (mut new, named): (Vec<_>, Vec<_>) = desired
        .into_iter()
        .partition(|slice| slice.metadata.name.is_empty());
    // The API server completes these names and makes them unique.
    for (index, slice) in new.iter_mut().enumerate() {
        slice.metadata.generate_name = format!("new-{index}-");
    }
    let desired = [distinct(named), new].concat();
    let mut published = distinct(published);
    for slice in desired.iter().chain(&published) {
        check_round_trip(slice);
    }

    let writes = diff(&desired, &published);
    let order: Vec<Operation> = writes.iter().map(|write| write.op).collect();
    let rank = |op: &Operation| match op {
        Operation::Delete => 0,
        Operation::Update => 1,
        Operation::Create => 2,
    };
    assert!(
        order.is_sorted_by_key(rank),
        "deletions, updates, creations: {order:?}"
    );
    apply(&writes, &mut published);
    assert_eq!(published.len(), desired.len(), "as many slices as desired");

    // The API server sets the names of new slices.
    let mut after = desired;
    for slice in &mut after {
        if slice.metadata.name.is_empty() {
            let given = published
                .iter()
                .find(|other| {
                    other
                        .metadata
                        .name
                        .starts_with(&slice.metadata.generate_name)
                })
                .expect("a created slice");
            slice.metadata.name.clone_from(&given.metadata.name);
        }
    }
    let more = diff(&after, &published);
    assert!(
        more.is_empty(),
        "the writes do not lead to what is desired: {more:?}"
    );
}
