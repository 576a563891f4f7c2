//! A compiled expression.

use std::time::Instant;

use crate::budget::{Budget, EVALUATION_TIMEOUT};
use crate::cost::COST_LIMIT;
use crate::device::DeviceInput;
use crate::error::{CompileError, EvalError};
use crate::eval::Machine;
use crate::fault::Fault;
use crate::plan::{self, Patterns, Plan};
use crate::types::Type;
use crate::value::Value;
use crate::{check, json, stack, syntax, validate};

/// The longest expression that Kubernetes accepts, in bytes.
pub const MAX_LENGTH: usize = 10 * 1024;

/// What may nest one expression in another, beside `in`. What `&&` and `||` join is balanced.
const NESTING: &[u8] = b"([{?!-+*/%=<>.";
/// From so many of these on, an expression is compiled with more room.
const MANY_SIGNS: usize = 64;
/// From this depth on, an expression is evaluated with more room.
const DEEP: usize = 48;

/// How often something in the text may nest one expression in another, at least.
fn nesting_signs(expression: &str) -> usize {
    let signs = expression.bytes().filter(|b| NESTING.contains(b)).count();
    // `1in[1]` has the operator too, and a name such as `x1in` is counted in vain.
    let words = expression.match_indices("in").filter(|(at, word)| {
        let before = expression[..*at].bytes().next_back();
        let after = expression[at + word.len()..].bytes().next();
        !before.is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
            && !after.is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_')
    });
    signs + words.count()
}

/// A compiled expression: compile once, evaluate on any number of devices, from any thread.
#[derive(Clone, Debug)]
pub struct Program {
    plan: Plan,
}

impl Program {
    /// Compiles a selector: an expression that says yes or no to a device.
    pub fn compile(expression: &str) -> Result<Self, CompileError> {
        Self::selector(expression, Patterns::Keep)
    }

    /// Whether an expression is a selector. Nothing of it stays in memory.
    pub fn check(expression: &str) -> Result<(), CompileError> {
        Self::selector(expression, Patterns::Forget).map(drop)
    }

    fn selector(expression: &str, keeping: Patterns) -> Result<Self, CompileError> {
        let (program, result) = Self::build(expression, keeping)?;
        if !plan::decides(&result) {
            return Err(CompileError::whole(format!(
                "the expression must give a bool, it gives a value of type {result}"
            )));
        }
        Ok(program)
    }

    /// Compiles an expression that may give any value.
    pub fn compile_value(expression: &str) -> Result<Self, CompileError> {
        Self::build(expression, Patterns::Keep).map(|(program, _)| program)
    }

    fn build(expression: &str, keeping: Patterns) -> Result<(Self, Type), CompileError> {
        if expression.len() > MAX_LENGTH {
            let length = expression.len();
            return Err(CompileError::whole(format!(
                "the expression has {length} bytes, at most {MAX_LENGTH} are allowed"
            )));
        }
        stack::with_room(nesting_signs(expression) > MANY_SIGNS, || {
            let (root, size) = syntax::parse(expression)?;
            let checked = check::check(&root, size)?;
            validate::validate(&root, &checked)?;
            let plan = plan::plan(&root, &checked, keeping)?;
            Ok((Self { plan }, checked.type_of(&root).clone()))
        })
        .map_err(CompileError::whole)?
    }

    /// Bytes of its compiled regular expressions.
    pub fn pattern_bytes(&self) -> usize {
        self.plan.pattern_bytes
    }

    /// Whether the device matches, within [`EVALUATION_TIMEOUT`].
    pub fn matches(&self, device: &DeviceInput) -> Result<bool, EvalError> {
        self.matches_until(device, Instant::now() + EVALUATION_TIMEOUT)
    }

    /// Whether the device matches; an error once the deadline has passed.
    pub fn matches_until(
        &self,
        device: &DeviceInput,
        deadline: Instant,
    ) -> Result<bool, EvalError> {
        let answer = self.run(device, deadline, |value, _| match value {
            Value::Bool(answer) => Ok(*answer),
            other => Err(Fault::new(format!(
                "the expression gave a value of type {}, not a bool",
                other.type_name()
            ))),
        });
        answer.0
    }

    /// The value of the expression as JSON, within [`EVALUATION_TIMEOUT`].
    pub fn evaluate(&self, device: &DeviceInput) -> Result<serde_json::Value, EvalError> {
        self.run(device, Instant::now() + EVALUATION_TIMEOUT, json::to_json)
            .0
    }

    /// What an evaluation cost, in Kubernetes' units; for an evaluation that fails, what it cost until then.
    pub fn cost(&self, device: &DeviceInput) -> u64 {
        self.run(device, Instant::now() + EVALUATION_TIMEOUT, |_, _| Ok(()))
            .1
    }

    /// What `read` makes of the value, and what that cost.
    fn run<T: Send>(
        &self,
        device: &DeviceInput,
        deadline: Instant,
        read: impl FnOnce(&Value, &mut Budget) -> Result<T, Fault> + Send,
    ) -> (Result<T, EvalError>, u64) {
        let outcome = stack::with_room(self.plan.depth > DEEP, || {
            let budget = Budget::new(deadline);
            let mut machine = Machine::new(device, self.plan.slots, COST_LIMIT, budget);
            let outcome = machine
                .eval(&self.plan.step)
                .and_then(|value| read(&value, &mut machine.budget))
                .map_err(|fault| EvalError::from_fault(fault, COST_LIMIT));
            (outcome, machine.spent())
        });
        outcome.unwrap_or_else(|message| (Err(EvalError::Failed { message, at: None }), 0))
    }
}
