//! A compiled expression.

use crate::cost::COST_LIMIT;
use crate::device::DeviceInput;
use crate::error::{CompileError, EvalError};
use crate::eval::Machine;
use crate::fault::Fault;
use crate::plan::{self, Plan};
use crate::types::Type;
use crate::value::Value;
use crate::{check, json, stack, syntax, validate};

/// The longest expression that Kubernetes accepts, in bytes.
pub const MAX_LENGTH: usize = 10 * 1024;

/// What may nest one expression in another.
const NESTING: &[u8] = b"([{?!-+*/%=<>.";
/// From so many of these on, an expression is compiled with more room.
const MANY_SIGNS: usize = 64;
/// From this depth on, an expression is evaluated with more room.
const DEEP: usize = 48;

/// A compiled expression: compile once, evaluate on any number of devices, from any thread.
#[derive(Clone, Debug)]
pub struct Program {
    plan: Plan,
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
        let signs = expression.bytes().filter(|b| NESTING.contains(b)).count();
        stack::with_room(signs > MANY_SIGNS, || {
            let (root, size) = syntax::parse(expression)?;
            let checked = check::check(&root, size)?;
            validate::validate(&root, &checked)?;
            let plan = plan::plan(&root, &checked)?;
            Ok((Self { plan }, checked.type_of(&root).clone()))
        })
    }

    /// Whether the device matches.
    pub fn matches(&self, device: &DeviceInput) -> Result<bool, EvalError> {
        match self.value(device)? {
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
        let value = self.value(device)?;
        json::to_json(&value).map_err(|fault| EvalError::from_fault(fault, COST_LIMIT))
    }

    /// What an evaluation cost, in Kubernetes' units; for an evaluation that fails, what it cost until then.
    pub fn cost(&self, device: &DeviceInput) -> u64 {
        self.run(device).1
    }

    fn value(&self, device: &DeviceInput) -> Result<Value, EvalError> {
        self.run(device)
            .0
            .map_err(|fault| EvalError::from_fault(fault, COST_LIMIT))
    }

    fn run(&self, device: &DeviceInput) -> (Result<Value, Fault>, u64) {
        stack::with_room(self.plan.depth > DEEP, || {
            let mut machine = Machine::new(device, self.plan.slots, COST_LIMIT);
            let outcome = machine.eval(&self.plan.step);
            (outcome, machine.spent())
        })
    }
}
