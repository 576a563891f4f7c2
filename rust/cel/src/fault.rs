//! Why an expression has no value.

use std::sync::Arc;

use crate::position::Position;
use crate::value::Value;

/// Why a step of an evaluation failed.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The cost limit: ends the evaluation at once, no operator absorbs it.
    TooExpensive,
    /// The memory limit, which ends the evaluation likewise.
    TooMuchMemory,
    /// The deadline, which ends the evaluation likewise.
    Deadline,
    /// An error of CEL, which `&&` and `||` may absorb.
    Error(Box<Failure>),
    /// An error that ends the evaluation as the cost limit does.
    Fatal(Box<Failure>),
}

#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) message: Arc<str>,
    pub(crate) at: Option<Position>,
}

// === impl Fault ===

impl Fault {
    /// `text` is not what it has to be; of a long text the message has the beginning.
    pub(crate) fn unreadable(text: &str, why: impl std::fmt::Display) -> Self {
        Self::new(format!("{} {why}", excerpt(text)))
    }

    pub(crate) fn new(message: impl Into<Arc<str>>) -> Self {
        Self::Error(Box::new(Failure {
            message: message.into(),
            at: None,
        }))
    }

    /// No implementation takes a value of this type.
    pub(crate) fn no_overload_for(value: &Value) -> Self {
        Self::new(format!(
            "does not work on a value of type {}",
            value.type_name()
        ))
    }

    /// The same fault with a place, unless it has one already.
    pub(crate) fn at(mut self, at: Position) -> Self {
        if let Self::Error(failure) | Self::Fatal(failure) = &mut self {
            failure.at.get_or_insert(at);
        }
        self
    }

    /// The same fault, but no operator absorbs it.
    pub(crate) fn fatal(self) -> Self {
        match self {
            Self::Error(failure) => Self::Fatal(failure),
            other => other,
        }
    }

    /// Whether the evaluation ends here and now.
    pub(crate) fn ends(&self) -> bool {
        !matches!(self, Self::Error(_))
    }
}

/// A text in quotes; of a long one only the beginning, as messages must not be as long as what they are about.
pub(crate) fn excerpt(text: &str) -> String {
    const MOST_CHARS: usize = 200;
    match text.char_indices().nth(MOST_CHARS) {
        Some((end, _)) => format!("{:?}... ({} bytes)", &text[..end], text.len()),
        None => format!("{text:?}"),
    }
}
