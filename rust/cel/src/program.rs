//! A compiled expression.

use crate::cost::COST_LIMIT;
use crate::device::DeviceInput;
use crate::error::{CompileError, EvalError};
use crate::eval::Machine;
use crate::fault::Fault;
use crate::plan::{self, Step};
use crate::types::Type;
use crate::value::Value;
use crate::{check, json, syntax, validate};

/// The longest expression that Kubernetes accepts, in bytes.
pub const MAX_LENGTH: usize = 10 * 1024;

/// A compiled expression: compile once, evaluate on any number of devices, from any thread.
#[derive(Clone, Debug)]
pub struct Program {
    step: Step,
    slots: usize,
}

impl Program {
    /// Compiles a selector: an expression that says yes or no to a device.
    pub fn compile(expression: &str) -> Result<Self, CompileError> {
        let (program, result) = Self::build(expression)?;
        if !plan::decides(&result) {
            return Err(CompileError::whole(format!(
                "the expression must give a bool, it gives a value of type {result}"
            )));
        }
        Ok(program)
    }

    /// Compiles an expression that may give any value.
    pub fn compile_value(expression: &str) -> Result<Self, CompileError> {
        Self::build(expression).map(|(program, _)| program)
    }

    fn build(expression: &str) -> Result<(Self, Type), CompileError> {
        if expression.len() > MAX_LENGTH {
            let length = expression.len();
            return Err(CompileError::whole(format!(
                "the expression has {length} bytes, at most {MAX_LENGTH} are allowed"
            )));
        }
        let (root, size) = syntax::parse(expression)?;
        let checked = check::check(&root, size)?;
        validate::validate(&root, &checked)?;
        let (step, slots) = plan::plan(&root, &checked)?;
        Ok((Self { step, slots }, checked.type_of(&root).clone()))
    }

    /// Whether the device matches.
    pub fn matches(&self, device: &DeviceInput) -> Result<bool, EvalError> {
        match self.run(device)?.0 {
            Value::Bool(answer) => Ok(answer),
            other => {
                let message = format!(
                    "the expression gave a value of type {}, not a bool",
                    other.type_name()
                );
                Err(EvalError::Failed { message, at: None })
            }
        }
    }

    /// The value of the expression as JSON.
    pub fn evaluate(&self, device: &DeviceInput) -> Result<serde_json::Value, EvalError> {
        let (value, _) = self.run(device)?;
        json::to_json(&value).map_err(|fault| EvalError::from_fault(fault, COST_LIMIT))
    }

    /// What an evaluation cost, in Kubernetes' units; for an evaluation that fails, what it cost until then.
    pub fn cost(&self, device: &DeviceInput) -> u64 {
        let mut machine = Machine::new(device, self.slots, COST_LIMIT);
        let _ = machine.eval(&self.step);
        machine.spent()
    }

    fn run(&self, device: &DeviceInput) -> Result<(Value, u64), EvalError> {
        let mut machine = Machine::new(device, self.slots, COST_LIMIT);
        let value = machine
            .eval(&self.step)
            .map_err(|fault: Fault| EvalError::from_fault(fault, COST_LIMIT))?;
        Ok((value, machine.spent()))
    }
}
