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
    #[error(
        "claim {claim}, request {request}: all devices are requested, but pool {pool} {problem}"
    )]
    UnusablePool {
        claim: String,
        request: String,
        pool: String,
        problem: String,
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
    /// Whether kube-scheduler of this minor version ends the attempt to schedule a pod at this error of one node, although
    /// other nodes may fit. Otherwise the error excludes the node only, or is an error of this allocator.
    ///
    /// Source: dynamicresources.go, Filter, of k8s.io/kubernetes v1.34.4 to v1.38.0-beta.0, and the errors that wrap
    /// `ErrFailedAllocationOnNode` in k8s.io/dynamic-resource-allocation of the same versions.
    pub(crate) fn ends_attempt(&self, minor: u32) -> bool {
        match self {
            Self::NotEvaluated { .. } | Self::Depth { .. } | Self::Steps { .. } => false,
            Self::Deadline { .. } => minor >= 36,
            Self::InvalidPool { .. } => minor < 35,
            Self::UnusablePool { .. } => minor < 38,
            Self::UnknownClass { .. }
            | Self::Request { .. }
            | Self::Constraint { .. }
            | Self::TooManyDevices { .. }
            | Self::Compile { .. }
            | Self::Evaluate { .. }
            | Self::NodeSelector { .. } => true,
        }
    }

    pub(crate) fn request(claim: &str, request: &str, message: impl Into<String>) -> Self {
        Self::Request {
            claim: claim.to_owned(),
            request: request.to_owned(),
            message: message.into(),
        }
    }
}
