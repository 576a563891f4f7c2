//! The internal errors of an evaluation.

use std::sync::Arc;

use crate::error::Position;
use crate::value::Value;

/// The error of a step of an evaluation.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The cost limit is exceeded. Ends the evaluation; no operator absorbs it.
    TooExpensive,
    /// The memory limit is exceeded. Ends the evaluation.
    TooMuchMemory,
    /// The deadline passed. Ends the evaluation.
    Deadline,
    /// An error of CEL, which `&&` and `||` may absorb.
    Error(Box<Failure>),
    /// An error that ends the evaluation.
    Fatal(Box<Failure>),
}

#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) message: Arc<str>,
    pub(crate) at: Option<Position>,
}

// === impl Fault ===

impl Fault {
    /// An error for an invalid `text`, which the message quotes up to a maximum length.
    pub(crate) fn invalid(text: &str, reason: impl std::fmt::Display) -> Self {
        Self::new(format!("{} {reason}", excerpt(text)))
    }

    pub(crate) fn new(message: impl Into<Arc<str>>) -> Self {
        Self::Error(Box::new(Failure {
            message: message.into(),
            at: None,
        }))
    }

    /// No overload accepts a value of this type.
    pub(crate) fn no_overload_for(value: &Value) -> Self {
        Self::new(format!(
            "does not work on a value of type {}",
            value.type_name()
        ))
    }

    /// The same fault with a position, unless it already has one.
    pub(crate) fn at(mut self, at: Position) -> Self {
        if let Self::Error(failure) | Self::Fatal(failure) = &mut self {
            failure.at.get_or_insert(at);
        }
        self
    }

    /// The same fault as one that no operator absorbs.
    pub(crate) fn fatal(self) -> Self {
        match self {
            Self::Error(failure) => Self::Fatal(failure),
            other => other,
        }
    }

    /// Whether the fault ends the evaluation.
    pub(crate) fn is_fatal(&self) -> bool {
        !matches!(self, Self::Error(_))
    }
}

/// A text in quotes, truncated to limit the length of messages.
pub(crate) fn excerpt(text: &str) -> String {
    const MAX_CHARS: usize = 200;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{:?}... ({} bytes)", &text[..end], text.len()),
        None => format!("{text:?}"),
    }
}
