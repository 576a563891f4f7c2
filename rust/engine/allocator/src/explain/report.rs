//! The output format of an explanation.

use dra_api::AllocationResult;
use serde::Serialize;

use crate::in_use::Holder;

/// The explanation of a query.
#[derive(Debug, Default, Serialize)]
pub struct Explanation {
    pub node: String,
    /// Whether all claims can be allocated.
    pub fits: bool,
    /// The error of the allocation, which kube-scheduler reports as an error.
    pub error: Option<String>,
    /// At the error, kube-scheduler places the pod on no node.
    pub fatal: bool,
    pub summary: String,
    pub claims: Vec<ClaimReport>,
    /// The pools with slices for the node, in search order.
    pub pools: Vec<PoolReport>,
    /// The allocations, one for each claim; empty if the claims do not fit.
    pub results: Vec<AllocationResult>,
}

#[derive(Debug, Default, Serialize)]
pub struct PoolReport {
    pub driver: String,
    pub pool: String,
    /// Number of devices in the slices of this node.
    pub devices: usize,
    /// The reason why the pool is not usable.
    pub problem: Option<String>,
}

#[derive(Debug, Default, Serialize)]
pub struct ClaimReport {
    /// `namespace/name`.
    pub claim: String,
    pub uid: String,
    /// Such a claim keeps its allocation and has no further explanation.
    pub already_allocated: bool,
    pub summary: String,
    /// Alternatives of `firstAvailable` have their own entries.
    pub requests: Vec<RequestReport>,
    pub constraints: Vec<ConstraintReport>,
}

#[derive(Debug, Default, Serialize)]
pub struct RequestReport {
    /// `main`, or `main/sub` for an alternative.
    pub request: String,
    /// One of several alternatives. The first that fits is allocated.
    pub alternative: bool,
    pub class: String,
    /// All matching devices are requested.
    pub all: bool,
    /// Number of devices.
    pub needed: i64,
    pub admin_access: bool,
    pub summary: String,
    /// The error of this request, which ends the allocation.
    pub error: Option<String>,
    /// Number of devices on this node that match the selectors.
    pub matching: usize,
    /// Number of matching devices without a rejection.
    pub available: usize,
    pub devices: Vec<DeviceReport>,
}

impl RequestReport {
    pub(super) fn count(&mut self) {
        self.matching = self.devices.iter().filter(|device| device.matches).count();
        self.available = self.devices.iter().filter(|device| device.accepted).count();
    }
}

#[derive(Debug, Default, Serialize)]
pub struct DeviceReport {
    pub driver: String,
    pub pool: String,
    pub device: String,
    /// The selectors match, and the device can be used on the node.
    pub matches: bool,
    /// The device individually has no rejection.
    pub accepted: bool,
    /// The allocation gives the device to the request.
    pub allocated: bool,
    /// All reasons against the device.
    pub rejections: Vec<Rejection>,
    /// The claims with the device or a share of it.
    pub holders: Vec<Holder>,
    #[serde(skip)]
    pub(super) candidate: Option<usize>,
}

impl DeviceReport {
    /// The error of a selector on this device, which ends the allocation.
    pub(super) fn failure(&self) -> Option<String> {
        self.rejections
            .iter()
            .find_map(|rejection| match rejection {
                Rejection::Selector {
                    error: Some(_),
                    message,
                    ..
                } => Some(format!("{}: {message}", self.device)),
                _ => None,
            })
    }
}

/// One reason against one device. `message` is for users, the other fields are for programs.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Rejection {
    /// The pool is not usable.
    Pool { message: String },
    /// The device cannot be used on this node.
    Node { message: String },
    Selector {
        /// `class NAME` or `request`.
        owner: String,
        index: usize,
        expression: String,
        /// The error of the evaluation; null if the selector is false.
        error: Option<String>,
        message: String,
    },
    InUse {
        holders: Vec<Holder>,
        message: String,
    },
    /// The slice skips operations of the node, and the device cannot be allocated without them.
    NodeOperations {
        operations: Vec<String>,
        message: String,
    },
    Taint {
        key: String,
        value: String,
        effect: String,
        message: String,
    },
    Counter {
        set: String,
        counter: String,
        needed: String,
        free: String,
        /// The devices that consume the counter, with their claims.
        consumers: Vec<Consumer>,
        message: String,
    },
    Capacity {
        name: String,
        /// `missing`, `policy` or `exceeded`.
        problem: String,
        needed: Option<String>,
        free: Option<String>,
        message: String,
    },
    Constraint {
        attribute: String,
        /// The device's value, or those of its list; null if it has none.
        value: Option<String>,
        message: String,
    },
}

#[derive(Debug, Clone, Serialize)]
pub struct Consumer {
    pub device: String,
    pub claim: String,
}

/// A constraint, and the values of the available devices.
#[derive(Debug, Default, Serialize)]
pub struct ConstraintReport {
    pub attribute: String,
    /// All values must differ; otherwise all must be equal.
    pub distinct: bool,
    /// The requests to which it applies.
    pub requests: Vec<String>,
    pub values: Vec<ValueReport>,
    /// The reason why the constraint cannot be satisfied; null if none is known.
    pub problem: Option<String>,
}

#[derive(Debug, Default, Serialize)]
pub struct ValueReport {
    pub value: String,
    /// The available devices with this value, alone or in a list.
    pub devices: Vec<String>,
}
