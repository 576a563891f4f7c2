//! Kubernetes' structured allocator: allocates devices of a node to ResourceClaims, and explains why a claim does not fit.
//!
//! The results equal those of kube-scheduler v1.37 with its default feature gates, and with some that are off by default
//! ([`Gates`]), device for device. docs/reference/allocator.md describes the tests. Existing allocations are an input,
//! new allocations are the output: a [`Cluster`] keeps the objects for any number of queries.

mod capacity;
mod cluster;
mod config;
mod constraints;
mod counters;
mod error;
mod explain;
mod gates;
mod held;
mod in_use;
mod node;
mod node_selector;
mod plan;
mod pools;
mod programs;
mod published;
mod query;
mod request;
mod result;
mod search;
mod selectors;
mod share_id;
mod slices;
mod taints;
mod value_set;

pub use cluster::{Capacity, Cause, Cluster, Counts, InvalidObject, NodeCapacity, Options, Sweep};
pub use error::Error;
pub use explain::{
    ClaimReport, ConstraintReport, Consumer, DeviceReport, Explanation, PoolReport, Rejection,
    RequestReport, ValueReport,
};
pub use gates::Gates;
pub use in_use::Holder;
pub use query::{Limits, Response};
