//! Why a question has no answer: what kube-scheduler reports as an error, rather than as "does not fit".

/// What is wrong with the claims, classes or slices. Nothing is allocated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("claim {claim}, request {request}: the device class {class:?} does not exist")]
    UnknownClass {
        claim: String,
        request: String,
        class: String,
    },
    #[error("claim {claim}, request {request}: {what}")]
    Request {
        claim: String,
        request: String,
        what: String,
    },
    #[error(
        "claim {claim}, constraint {index}: neither matchAttribute nor distinctAttribute is set, and no other kind is known"
    )]
    Constraint { claim: String, index: usize },
    #[error("claim {claim}: more than 32 devices would have to be allocated")]
    TooManyDevices { claim: String },
    #[error("{owner}: selector {index} does not compile: {what}")]
    Compile {
        owner: String,
        index: usize,
        what: String,
    },
    #[error("{owner}: selector {index} fails on device {device}: {what}")]
    Evaluate {
        owner: String,
        index: usize,
        device: String,
        what: String,
    },
    #[error("{place}: the node selector is not valid: {what}")]
    NodeSelector { place: String, what: String },
    #[error("pool {pool} is not valid ({reason}), and without its devices the claims do not fit")]
    InvalidPool { pool: String, reason: String },
    #[error("too many devices are asked for at once, {depth} steps deep: {what}")]
    Depth { depth: usize, what: String },
    #[error(
        "no answer within {milliseconds} ms: too many combinations of devices would have to be tried, or the selectors take too long"
    )]
    Deadline { milliseconds: u64 },
    #[error(
        "no answer within {steps} steps: too many combinations of devices would have to be tried"
    )]
    Steps { steps: u64 },
}

impl Error {
    pub(crate) fn request(claim: &str, request: &str, what: impl Into<String>) -> Self {
        Self::Request {
            claim: claim.to_owned(),
            request: request.to_owned(),
            what: what.into(),
        }
    }
}
