//! Selectors: CEL expressions of classes and requests, compiled once and evaluated at most once on each device.
//!
//! An expression that does not compile or fails ends the allocation, but only when it is needed for a device.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use dra_api::DeviceSelector;
use dra_cel::{DeviceInput, EvalError, Program};

use crate::error::Error;
use crate::pools::Candidate;
use crate::query::Deadline;

/// The result of selectors on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SelectorResult {
    Matches,
    /// The index of the first selector that is false.
    False(usize),
}

/// A selector that cannot be evaluated.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    Compile {
        index: usize,
        message: String,
    },
    Evaluate {
        index: usize,
        message: String,
    },
    /// The deadline of the search passed.
    Deadline(Deadline),
}

impl Failure {
    /// The error of an allocation. `owner` is the class or the claim of the selectors.
    pub(crate) fn into_error(self, owner: String, candidate: &Candidate<'_>) -> Error {
        match self {
            Self::Compile { index, message } => Error::Compile {
                owner,
                index,
                message,
            },
            Self::Evaluate { index, message } => Error::Evaluate {
                owner,
                index,
                device: candidate.id().to_string(),
                message,
            },
            Self::Deadline(deadline) => deadline.error(),
        }
    }
}

#[derive(Debug)]
struct Compiled {
    program: Result<Program, String>,
    /// The results by candidate.
    results: HashMap<usize, Result<bool, String>>,
}

/// Caches compiled expressions by text, converted devices, and results.
#[derive(Debug)]
pub(crate) struct Selectors<'a> {
    deadline: Deadline,
    /// Memory of the compiled regular expressions, in bytes.
    pattern_bytes: usize,
    compiled: HashMap<&'a str, Compiled>,
    devices: HashMap<usize, Result<DeviceInput, String>>,
}

/// Limit for the compiled regular expressions of one query, in bytes.
const MAX_PATTERN_BYTES: usize = 64 << 20;

impl<'a> Selectors<'a> {
    pub(crate) fn new(deadline: Deadline) -> Self {
        Self {
            deadline,
            pattern_bytes: 0,
            compiled: HashMap::new(),
            devices: HashMap::new(),
        }
    }

    /// Evaluates the selectors on a candidate in their order, up to the first that is false.
    pub(crate) fn evaluate_all(
        &mut self,
        selectors: &'a [DeviceSelector],
        index: usize,
        candidate: &Candidate<'a>,
    ) -> Result<SelectorResult, Failure> {
        for (position, selector) in selectors.iter().enumerate() {
            let expression = selector
                .cel
                .as_ref()
                .map(|cel| cel.expression.as_str())
                .unwrap_or_default();
            match self.evaluate(expression, index, candidate) {
                Ok(true) => {}
                Ok(false) => return Ok(SelectorResult::False(position)),
                Err(Failure::Compile { message, .. }) => {
                    return Err(Failure::Compile {
                        index: position,
                        message,
                    });
                }
                Err(Failure::Evaluate { message, .. }) => {
                    return Err(Failure::Evaluate {
                        index: position,
                        message,
                    });
                }
                Err(late @ Failure::Deadline(_)) => return Err(late),
            }
        }
        Ok(SelectorResult::Matches)
    }

    fn evaluate(
        &mut self,
        expression: &'a str,
        index: usize,
        candidate: &Candidate<'a>,
    ) -> Result<bool, Failure> {
        let deadline = self.deadline;
        let late = || Failure::Deadline(deadline);
        let compiled = match self.compiled.entry(expression) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                deadline.check().map_err(|_| late())?;
                place.insert(Compiled {
                    program: compile(expression, &mut self.pattern_bytes),
                    results: HashMap::new(),
                })
            }
        };
        let program = match &compiled.program {
            Ok(program) => program,
            Err(message) => {
                return Err(Failure::Compile {
                    index: 0,
                    message: message.clone(),
                });
            }
        };
        let result = match compiled.results.entry(index) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                deadline.check().map_err(|_| late())?;
                let device = self.devices.entry(index).or_insert_with(|| {
                    DeviceInput::new(&candidate.slice.spec.driver, candidate.device)
                        .map_err(|error| error.to_string())
                });
                place.insert(match device {
                    Ok(device) => match program.matches_until(device, deadline.at) {
                        Err(EvalError::Deadline) => return Err(late()),
                        result => result.map_err(|error| error.to_string()),
                    },
                    Err(message) => Err(message.clone()),
                })
            }
        };
        result
            .clone()
            .map_err(|message| Failure::Evaluate { index: 0, message })
    }
}

fn compile(expression: &str, pattern_bytes: &mut usize) -> Result<Program, String> {
    let program = Program::compile(expression).map_err(|error| error.to_string())?;
    *pattern_bytes += program.pattern_bytes();
    if *pattern_bytes > MAX_PATTERN_BYTES {
        return Err(format!(
            "the regular expressions of all selectors take more than {} MiB together",
            MAX_PATTERN_BYTES >> 20
        ));
    }
    Ok(program)
}
