//! The errors of an allocation, which kube-scheduler reports as errors, not as "does not fit".

/// An error in the claims, classes or slices, or an exceeded limit. No claim is allocated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("claim {claim}, request {request}: the device class {class:?} does not exist")]
    UnknownClass {
        claim: String,
        request: String,
        class: String,
    },
    #[error("claim {claim}, request {request}: {message}")]
    Request {
        claim: String,
        request: String,
        message: String,
    },
    #[error(
        "claim {claim}, constraint {index}: neither matchAttribute nor distinctAttribute is set; no other constraint is supported"
    )]
    Constraint { claim: String, index: usize },
    #[error("claim {claim}: more than 32 devices would have to be allocated")]
    TooManyDevices { claim: String },
    #[error("{owner}: selector {index} does not compile: {message}")]
    Compile {
        owner: String,
        index: usize,
        message: String,
    },
    #[error("{owner}: selector {index} fails on device {device}: {message}")]
    Evaluate {
        owner: String,
        index: usize,
        device: String,
        message: String,
    },
    #[error("{place}: the node selector is invalid: {message}")]
    NodeSelector { place: String, message: String },
    #[error("pool {pool} is invalid ({reason}), and without its devices the claims do not fit")]
    InvalidPool { pool: String, reason: String },
    #[error("pool {pool} {problem}; without its devices the claims do not fit")]
    NotEvaluated { pool: String, problem: String },
    #[error("too many devices are requested at once, {depth} steps deep: {message}")]
    Depth { depth: usize, message: String },
    #[error(
        "no result within {milliseconds} ms: there are too many combinations of devices, or the selectors take too long"
    )]
    Deadline { milliseconds: u64 },
    #[error("no result within {steps} steps: there are too many combinations of devices")]
    Steps { steps: u64 },
}

impl Error {
    pub(crate) fn request(claim: &str, request: &str, message: impl Into<String>) -> Self {
        Self::Request {
            claim: claim.to_owned(),
            request: request.to_owned(),
            message: message.into(),
        }
    }
}
