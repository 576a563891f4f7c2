//! Selectors: CEL expressions of classes and requests, compiled once and evaluated at most once on each device.
//!
//! A slice keeps the results, so a later query of the same cluster does not evaluate them again.
//! An expression that does not compile or fails ends the allocation, but only when it is needed for a device.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use dra_api::DeviceSelector;
use dra_cel::{DeviceInput, EvalError};

use crate::error::Error;
use crate::pools::Candidate;
use crate::programs::{Compiled, Programs};
use crate::published::{Published, Results};
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

/// An expression in use by a query.
#[derive(Debug)]
struct Used<'a> {
    /// The message of an error if the expression cannot be used.
    compiled: Result<Arc<Compiled>, String>,
    /// The results on the slice of the last device.
    results: Option<(&'a Published, Results)>,
}

/// The expressions of one query, and the converted devices.
#[derive(Debug)]
pub(crate) struct Selectors<'a> {
    deadline: Deadline,
    programs: &'a Programs,
    /// Memory of the compiled regular expressions, in bytes.
    pattern_bytes: usize,
    used: HashMap<&'a str, Used<'a>>,
    devices: HashMap<usize, Result<DeviceInput, String>>,
}

/// Limit for the compiled regular expressions of one query, in bytes.
const MAX_PATTERN_BYTES: usize = 64 << 20;

impl<'a> Selectors<'a> {
    pub(crate) fn new(programs: &'a Programs, deadline: Deadline) -> Self {
        Self {
            deadline,
            programs,
            pattern_bytes: 0,
            used: HashMap::new(),
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
        let used = match self.used.entry(expression) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                deadline.check().map_err(|_| late())?;
                let compiled = self.programs.get(expression);
                self.pattern_bytes += compiled.pattern_bytes();
                place.insert(Used {
                    compiled: usable(compiled, self.pattern_bytes),
                    results: None,
                })
            }
        };
        let compile_error = |message: &String| Failure::Compile {
            index: 0,
            message: message.clone(),
        };
        let compiled = used.compiled.as_ref().map_err(compile_error)?;
        let program = compiled.program.as_ref().map_err(compile_error)?;
        let slice = candidate.slice;
        let results = match &mut used.results {
            Some((of, results)) if std::ptr::eq(*of, slice) => results,
            other => &mut other.insert((slice, slice.results_of(compiled.id))).1,
        };
        if let Some(known) = results.get(candidate.position) {
            return Ok(known);
        }
        deadline.check().map_err(|_| late())?;
        let evaluation_error = |message: String| Failure::Evaluate { index: 0, message };
        let device = self.devices.entry(index).or_insert_with(|| {
            DeviceInput::new(&candidate.slice.spec.driver, candidate.device)
                .map_err(|error| error.to_string())
        });
        let device = device
            .as_ref()
            .map_err(|message| evaluation_error(message.clone()))?;
        self.programs.count_evaluation();
        match program.matches_until(device, deadline.at) {
            Ok(matches) => {
                results.set(candidate.position, matches);
                Ok(matches)
            }
            Err(EvalError::Deadline) => Err(late()),
            Err(error) => Err(evaluation_error(error.to_string())),
        }
    }
}

/// The expression, unless the regular expressions of the query take too much memory with it.
fn usable(compiled: Arc<Compiled>, pattern_bytes: usize) -> Result<Arc<Compiled>, String> {
    if compiled.program.is_ok() && pattern_bytes > MAX_PATTERN_BYTES {
        return Err(format!(
            "the regular expressions of all selectors take more than {} MiB together",
            MAX_PATTERN_BYTES >> 20
        ));
    }
    Ok(compiled)
}
