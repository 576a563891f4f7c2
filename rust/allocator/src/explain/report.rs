//! The shape of an explanation: what people and programs read.

use dra_api::AllocationResult;
use serde::Serialize;

use crate::in_use::Holder;

/// Why the claims of a question get the devices that they get.
#[derive(Debug, Default, Serialize)]
pub struct Explanation {
    pub node: String,
    /// Whether all claims can be allocated together.
    pub fits: bool,
    /// Why there is no answer at all: what kube-scheduler would report as an error.
    pub error: Option<String>,
    pub summary: String,
    pub claims: Vec<ClaimReport>,
    /// The pools with something for the node, in the order in which they are searched.
    pub pools: Vec<PoolReport>,
    /// What would be allocated, one entry for each claim; empty where they do not fit.
    pub results: Vec<AllocationResult>,
}

#[derive(Debug, Default, Serialize)]
pub struct PoolReport {
    pub driver: String,
    pub pool: String,
    /// In the slices of this node.
    pub devices: usize,
    /// Why nothing of it can be allocated.
    pub problem: Option<String>,
}

#[derive(Debug, Default, Serialize)]
pub struct ClaimReport {
    /// `namespace/name`.
    pub claim: String,
    pub uid: String,
    /// Such a claim keeps what it has; there is nothing to explain.
    pub already_allocated: bool,
    pub summary: String,
    /// Alternatives of `firstAvailable` are entries of their own.
    pub requests: Vec<RequestReport>,
    pub constraints: Vec<ConstraintReport>,
}

#[derive(Debug, Default, Serialize)]
pub struct RequestReport {
    /// `main`, or `main/sub` for an alternative.
    pub request: String,
    /// One of several; the first that fits is taken.
    pub alternative: bool,
    pub class: String,
    /// Every matching device is asked for.
    pub all: bool,
    /// How many devices it takes.
    pub needed: i64,
    pub admin_access: bool,
    pub summary: String,
    /// Why the whole allocation ends with an error at this request.
    pub error: Option<String>,
    /// Devices for which the selectors hold, on this node.
    pub matching: usize,
    /// Those of them that nothing speaks against.
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
    /// The selectors hold and the node is right.
    pub matches: bool,
    /// Nothing speaks against the device, taken alone.
    pub accepted: bool,
    /// This is what the request would get.
    pub allocated: bool,
    /// Everything that speaks against it.
    pub rejections: Vec<Rejection>,
    /// The claims that have it or a share of it.
    pub holders: Vec<Holder>,
    #[serde(skip)]
    pub(super) candidate: Option<usize>,
}

impl DeviceReport {
    /// The selector that fails on this device, if one does: that is an error of the whole allocation.
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

/// One reason against one device. `message` says it in words, the rest is for programs.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Rejection {
    /// The pool cannot be allocated from.
    Pool { message: String },
    /// The device cannot be used on this node.
    Node { message: String },
    Selector {
        /// `class NAME` or `request`.
        owner: String,
        index: usize,
        expression: String,
        /// Why it has no value; null where it is false.
        error: Option<String>,
        message: String,
    },
    InUse {
        holders: Vec<Holder>,
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
        /// `device` and `claim` of those who consume of the counter.
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
        /// The device's value; null where it has none.
        value: Option<String>,
        message: String,
    },
}

#[derive(Debug, Clone, Serialize)]
pub struct Consumer {
    pub device: String,
    pub claim: String,
}

/// What a constraint has to choose from.
#[derive(Debug, Default, Serialize)]
pub struct ConstraintReport {
    pub attribute: String,
    /// All values must differ; otherwise all must be the same.
    pub distinct: bool,
    /// The requests that it is about.
    pub requests: Vec<String>,
    pub values: Vec<ValueReport>,
    /// Why it cannot hold; null where nothing speaks against it.
    pub problem: Option<String>,
}

#[derive(Debug, Default, Serialize)]
pub struct ValueReport {
    pub value: String,
    /// Available devices that have this value.
    pub devices: Vec<String>,
}
