//! Selectors: CEL expressions of classes and requests, compiled once and evaluated at most once on each device.
//!
//! An expression that does not compile, or fails on a device, ends the allocation; but only once a device is asked.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use dra_api::DeviceSelector;
use dra_cel::{DeviceInput, EvalError, Program};

use crate::error::Error;
use crate::pools::Candidate;
use crate::question::Deadline;

/// What the selectors say of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Matches,
    /// The index of the first selector that is false.
    False(usize),
}

/// A selector that cannot be evaluated.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    Compile {
        index: usize,
        what: String,
    },
    Evaluate {
        index: usize,
        what: String,
    },
    /// The answer's deadline has passed.
    Deadline(Deadline),
}

impl Failure {
    /// As the error of an allocation. `owner` is the class or the claim that the selectors belong to.
    pub(crate) fn of(self, owner: String, candidate: &Candidate<'_>) -> Error {
        match self {
            Self::Compile { index, what } => Error::Compile { owner, index, what },
            Self::Evaluate { index, what } => Error::Evaluate {
                owner,
                index,
                device: candidate.id().to_string(),
                what,
            },
            Self::Deadline(deadline) => deadline.error(),
        }
    }
}

#[derive(Debug)]
struct Compiled {
    program: Result<Program, String>,
    /// The answer for each candidate that was asked for.
    answers: HashMap<usize, Result<bool, String>>,
}

/// Programs by their text, and devices ready to be asked.
#[derive(Debug)]
pub(crate) struct Selectors<'a> {
    deadline: Deadline,
    /// Of the compiled regular expressions.
    pattern_bytes: usize,
    compiled: HashMap<&'a str, Compiled>,
    devices: HashMap<usize, Result<DeviceInput, String>>,
}

/// Bytes of the compiled regular expressions of one question.
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

    /// Asks the selectors in their order about a candidate, until one says no.
    pub(crate) fn ask(
        &mut self,
        selectors: &'a [DeviceSelector],
        index: usize,
        candidate: &Candidate<'a>,
    ) -> Result<Verdict, Failure> {
        for (position, selector) in selectors.iter().enumerate() {
            let expression = selector
                .cel
                .as_ref()
                .map(|cel| cel.expression.as_str())
                .unwrap_or_default();
            match self.evaluate(expression, index, candidate) {
                Ok(true) => {}
                Ok(false) => return Ok(Verdict::False(position)),
                Err(Failure::Compile { what, .. }) => {
                    return Err(Failure::Compile {
                        index: position,
                        what,
                    });
                }
                Err(Failure::Evaluate { what, .. }) => {
                    return Err(Failure::Evaluate {
                        index: position,
                        what,
                    });
                }
                Err(late @ Failure::Deadline(_)) => return Err(late),
            }
        }
        Ok(Verdict::Matches)
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
                    answers: HashMap::new(),
                })
            }
        };
        let program = match &compiled.program {
            Ok(program) => program,
            Err(what) => {
                return Err(Failure::Compile {
                    index: 0,
                    what: what.clone(),
                });
            }
        };
        let answer = match compiled.answers.entry(index) {
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
                        answer => answer.map_err(|error| error.to_string()),
                    },
                    Err(what) => Err(what.clone()),
                })
            }
        };
        answer
            .clone()
            .map_err(|what| Failure::Evaluate { index: 0, what })
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
