//! Kubernetes' structured allocator: allocates devices of a node to ResourceClaims, and explains why a claim does not fit.
//!
//! The results equal those of kube-scheduler v1.37 with its default feature gates, device for device. docs/reference/allocator.md
//! describes the tests. The crate has no state: existing allocations are an input, new allocations are the output.

mod capacity;
mod config;
mod constraints;
mod counters;
mod error;
mod explain;
mod in_use;
mod node;
mod node_selector;
mod plan;
mod pools;
mod query;
mod request;
mod result;
mod search;
mod selectors;
mod share_id;
mod taints;

pub use error::Error;
pub use explain::{
    ClaimReport, ConstraintReport, Consumer, DeviceReport, Explanation, PoolReport, Rejection,
    RequestReport, ValueReport, explain,
};
pub use in_use::Holder;
pub use query::{Limits, NodeInput, Query, Response, allocate};
