//! Kubernetes' structured allocator: which devices of a node a set of ResourceClaims gets, and why not.
//!
//! The answers are those of kube-scheduler v1.37 with its default feature gates, device for device; how far that is tested
//! stands in docs/allocator.md. The crate decides, it changes nothing: who holds what is an input, the allocation an output.

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
mod question;
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
pub use question::{Answer, Limits, NodeInput, Question, allocate};
