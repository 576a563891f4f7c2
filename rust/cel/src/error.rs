//! What the crate reports: expressions that do not compile, and evaluations that fail.

use std::fmt;

use crate::budget::MEMORY_LIMIT_BYTES;
use crate::fault::{Failure, Fault};
use crate::position::Position;

/// Why an expression is refused. All that was found, in the order of the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct CompileError {
    mistakes: Vec<(Option<Position>, String)>,
}

/// Why an expression has no value for a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// The device lacks what the expression reads, or a function does not accept it.
    #[error("{}{message}", place(at))]
    Failed {
        /// What went wrong.
        message: String,
        /// Where in the expression.
        at: Option<Position>,
    },
    /// The evaluation did more than Kubernetes allows.
    #[error("the evaluation exceeds the cost limit of {limit}")]
    TooExpensive {
        /// The limit, in Kubernetes' cost units.
        limit: u64,
    },
    /// The evaluation would make more than any needs, which Kubernetes does not count.
    #[error(
        "the evaluation exceeds the cost limit: it makes more than {} MiB of strings, lists and maps",
        limit_bytes >> 20
    )]
    TooMuchMemory {
        /// The limit, in bytes.
        limit_bytes: usize,
    },
    /// The caller's deadline, or the crate's own, passed.
    #[error("the evaluation did not end before its deadline")]
    Deadline,
    /// The device itself cannot be shown to an expression.
    #[error("attribute {attribute}: {message}")]
    Device {
        /// The name of the attribute.
        attribute: String,
        /// What is wrong with it.
        message: String,
    },
}

// === impl CompileError ===

impl CompileError {
    pub(crate) fn at(at: Position, message: impl Into<String>) -> Self {
        Self {
            mistakes: vec![(Some(at), message.into())],
        }
    }

    pub(crate) fn whole(message: impl Into<String>) -> Self {
        Self {
            mistakes: vec![(None, message.into())],
        }
    }

    pub(crate) fn many(mut mistakes: Vec<(Position, String)>) -> Self {
        mistakes.sort_by_key(|(at, _)| *at);
        Self {
            mistakes: mistakes
                .into_iter()
                .map(|(at, message)| (Some(at), message))
                .collect(),
        }
    }

    pub(crate) fn syntax(errors: &cel::ParseErrors) -> Self {
        let mistakes = errors.errors.iter().map(|error| {
            let place = |n: isize| u32::try_from(n).unwrap_or(1).max(1);
            (
                Some(Position {
                    line: place(error.pos.0),
                    column: place(error.pos.1),
                }),
                error.msg.clone(),
            )
        });
        Self {
            mistakes: mistakes.collect(),
        }
    }

    /// A constant part of the expression that fails whatever the device.
    pub(crate) fn constant(at: Position, fault: Fault) -> Self {
        match fault {
            Fault::Error(failure) | Fault::Fatal(failure) => {
                Self::at(failure.at.unwrap_or(at), &*failure.message)
            }
            Fault::TooExpensive | Fault::TooMuchMemory | Fault::Deadline => {
                Self::at(at, "the constant is too expensive to compute")
            }
        }
    }

    /// Each mistake with its place.
    pub fn mistakes(&self) -> &[(Option<Position>, String)] {
        &self.mistakes
    }
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (at, message)) in self.mistakes.iter().enumerate() {
            write!(
                f,
                "{}{}{message}",
                if i == 0 { "" } else { "; " },
                place(at)
            )?;
        }
        Ok(())
    }
}

// === impl EvalError ===

impl EvalError {
    pub(crate) fn from_fault(fault: Fault, limit: u64) -> Self {
        match fault {
            Fault::TooExpensive => Self::TooExpensive { limit },
            Fault::TooMuchMemory => Self::TooMuchMemory {
                limit_bytes: MEMORY_LIMIT_BYTES,
            },
            Fault::Deadline => Self::Deadline,
            Fault::Error(failure) | Fault::Fatal(failure) => {
                let Failure { message, at } = *failure;
                Self::Failed {
                    message: message.to_string(),
                    at,
                }
            }
        }
    }
}

fn place(at: &Option<Position>) -> String {
    at.map_or_else(String::new, |at| format!("{at}: "))
}
