//! Errors of the crate: compile errors and evaluation errors, with positions.

use std::fmt;

use crate::budget::MEMORY_LIMIT_BYTES;
use crate::fault::{Failure, Fault};
use crate::syntax::MAX_DEPTH;

/// A position in the text of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1, in characters.
    pub column: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// The errors of an expression that does not compile, in the order of the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct CompileError {
    errors: Vec<(Option<Position>, String)>,
}

/// The error of an evaluation on a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// The device lacks an attribute or capacity of the expression, or a function does not accept it.
    #[error("{}{message}", place(at))]
    Failed {
        /// The message.
        message: String,
        /// The position in the expression.
        at: Option<Position>,
    },
    /// The evaluation exceeds Kubernetes' cost limit.
    #[error("the evaluation exceeds the cost limit of {limit}")]
    TooExpensive {
        /// The limit, in Kubernetes' cost units.
        limit: u64,
    },
    /// The evaluation exceeds the memory limit, which Kubernetes does not have.
    #[error(
        "the evaluation exceeds the cost limit: it creates more than {} MiB of strings, lists and maps",
        limit_bytes >> 20
    )]
    TooMuchMemory {
        /// The limit, in bytes.
        limit_bytes: usize,
    },
    /// The deadline of the caller or the default time limit passed.
    #[error("the evaluation did not end before its deadline")]
    Deadline,
    /// An attribute of the device is invalid.
    #[error("attribute {attribute}: {message}")]
    Device {
        /// The name of the attribute.
        attribute: String,
        /// The reason.
        message: String,
    },
}

// === impl CompileError ===

impl CompileError {
    pub(crate) fn at(at: Position, message: impl Into<String>) -> Self {
        Self {
            errors: vec![(Some(at), message.into())],
        }
    }

    pub(crate) fn whole(message: impl Into<String>) -> Self {
        Self {
            errors: vec![(None, message.into())],
        }
    }

    pub(crate) fn many(mut errors: Vec<(Position, String)>) -> Self {
        errors.sort_by_key(|(at, _)| *at);
        Self {
            errors: errors
                .into_iter()
                .map(|(at, message)| (Some(at), message))
                .collect(),
        }
    }

    pub(crate) fn syntax(errors: &cel::ParseErrors) -> Self {
        let place = |n: isize| u32::try_from(n).unwrap_or(1).max(1);
        let position = |error: &cel::ParseError| Position {
            line: place(error.pos.0),
            column: place(error.pos.1),
        };
        // The parser's own text is that of its internal error, and the errors after it are its consequences.
        let too_deep = |error: &&cel::ParseError| error.msg.contains("Recursion limit of");
        if let Some(error) = errors.errors.iter().find(too_deep) {
            let message = format!("more than {MAX_DEPTH} nested expressions");
            return Self::at(position(error), message);
        }
        let errors = errors.errors.iter();
        Self {
            errors: errors
                .map(|error| (Some(position(error)), error.msg.clone()))
                .collect(),
        }
    }

    /// A constant part of the expression fails for every device.
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

    /// The messages, each with its position if it has one.
    pub fn errors(&self) -> &[(Option<Position>, String)] {
        &self.errors
    }
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (at, message)) in self.errors.iter().enumerate() {
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
