//! Selectors: CEL expressions of classes and requests, compiled once and evaluated at most once on each device.
//!
//! An expression that does not compile, or fails on a device, ends the allocation; but only once a device is asked.

use std::collections::HashMap;

use dra_api::DeviceSelector;
use dra_cel::{DeviceInput, Program};

use crate::error::Error;
use crate::pools::Candidate;

/// What the selectors say of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Matches,
    /// The index of the first selector that is false.
    False(usize),
}

/// A selector that cannot be evaluated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    Compile { index: usize, what: String },
    Evaluate { index: usize, what: String },
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
#[derive(Debug, Default)]
pub(crate) struct Selectors<'a> {
    compiled: HashMap<&'a str, Compiled>,
    devices: HashMap<usize, Result<DeviceInput, String>>,
}

impl<'a> Selectors<'a> {
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
        let compiled = self.compiled.entry(expression).or_insert_with(|| Compiled {
            program: Program::compile(expression).map_err(|error| error.to_string()),
            answers: HashMap::new(),
        });
        let program = match &compiled.program {
            Ok(program) => program,
            Err(what) => {
                return Err(Failure::Compile {
                    index: 0,
                    what: what.clone(),
                });
            }
        };
        let answer = compiled.answers.entry(index).or_insert_with(|| {
            let device = self.devices.entry(index).or_insert_with(|| {
                DeviceInput::new(&candidate.slice.spec.driver, candidate.device)
                    .map_err(|error| error.to_string())
            });
            match device {
                Ok(device) => program.matches(device).map_err(|error| error.to_string()),
                Err(what) => Err(what.clone()),
            }
        });
        answer
            .clone()
            .map_err(|what| Failure::Evaluate { index: 0, what })
    }
}
