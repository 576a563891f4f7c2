//! A compiled expression.

use std::time::Instant;

use crate::budget::{Budget, EVALUATION_TIMEOUT};
use crate::cost::COST_LIMIT;
use crate::device::DeviceInput;
use crate::error::{CompileError, EvalError};
use crate::eval::Interpreter;
use crate::fault::Fault;
use crate::plan::{self, PatternCaching, Plan};
use crate::types::Type;
use crate::value::Value;
use crate::{check, json, stack, syntax, validate};

/// The longest expression that Kubernetes accepts, in bytes.
pub const MAX_LENGTH: usize = 10 * 1024;

/// Characters that may nest one expression in another, apart from `in`. The trees of `&&` and `||` are balanced.
const NESTING_CHARS: &[u8] = b"([{?!-+*/%=<>.";
/// An expression with more of these characters is compiled with a large stack.
const LARGE_STACK_CHARS: usize = 64;
/// A plan deeper than this is evaluated with a large stack.
const LARGE_STACK_DEPTH: usize = 48;

/// An upper bound for the nesting depth of an expression, from its text.
fn nesting_chars(expression: &str) -> usize {
    let characters = expression
        .bytes()
        .filter(|b| NESTING_CHARS.contains(b))
        .count();
    // `1in[1]` contains the operator too. A name such as `x1in` is counted although it does not.
    let words = expression.match_indices("in").filter(|(at, word)| {
        let before = expression[..*at].bytes().next_back();
        let after = expression[at + word.len()..].bytes().next();
        !before.is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
            && !after.is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_')
    });
    characters + words.count()
}

/// A compiled expression: compile once, evaluate on any number of devices, from any thread.
#[derive(Clone, Debug)]
pub struct Program {
    plan: Plan,
}

impl Program {
    /// Compiles a selector: an expression with a bool result.
    ///
    /// # Errors
    ///
    /// The expression does not compile, or its result is not a bool.
    pub fn compile(expression: &str) -> Result<Self, CompileError> {
        Self::selector(expression, PatternCaching::Enabled)
    }

    /// Checks that an expression is a selector. Does not use the cache of regular expressions.
    ///
    /// # Errors
    ///
    /// As for [`Program::compile`].
    pub fn check(expression: &str) -> Result<(), CompileError> {
        Self::selector(expression, PatternCaching::Disabled).map(drop)
    }

    fn selector(expression: &str, cache_patterns: PatternCaching) -> Result<Self, CompileError> {
        let (program, result) = Self::build(expression, cache_patterns)?;
        if !plan::is_selector_type(&result) {
            return Err(CompileError::whole(format!(
                "the expression must return a bool, it returns a value of type {result}"
            )));
        }
        Ok(program)
    }

    /// Compiles an expression with a result of any type.
    ///
    /// # Errors
    ///
    /// The expression does not compile.
    pub fn compile_value(expression: &str) -> Result<Self, CompileError> {
        Self::build(expression, PatternCaching::Enabled).map(|(program, _)| program)
    }

    fn build(
        expression: &str,
        cache_patterns: PatternCaching,
    ) -> Result<(Self, Type), CompileError> {
        if expression.len() > MAX_LENGTH {
            let length = expression.len();
            return Err(CompileError::whole(format!(
                "the expression has {length} bytes, at most {MAX_LENGTH} are allowed"
            )));
        }
        stack::with_stack(nesting_chars(expression) > LARGE_STACK_CHARS, || {
            let (root, size) = syntax::parse(expression)?;
            let checked = check::check(&root, size)?;
            validate::validate(&root, &checked)?;
            let plan = plan::plan(&root, &checked, cache_patterns)?;
            Ok((Self { plan }, checked.type_of(&root).clone()))
        })
        .map_err(CompileError::whole)?
    }

    /// Memory of the compiled regular expressions, in bytes.
    pub fn pattern_bytes(&self) -> usize {
        self.plan.pattern_bytes
    }

    /// Whether the device matches. The deadline is [`EVALUATION_TIMEOUT`] from now.
    ///
    /// # Errors
    ///
    /// The evaluation fails, its result is not a bool, or it exceeds the cost limit, the memory limit or the deadline.
    pub fn matches(&self, device: &DeviceInput) -> Result<bool, EvalError> {
        self.matches_until(device, Instant::now() + EVALUATION_TIMEOUT)
    }

    /// Whether the device matches, with the caller's deadline.
    ///
    /// # Errors
    ///
    /// As for [`Program::matches`].
    pub fn matches_until(
        &self,
        device: &DeviceInput,
        deadline: Instant,
    ) -> Result<bool, EvalError> {
        let (matches, _) = self.run(device, deadline, |value, _| match value {
            Value::Bool(matches) => Ok(*matches),
            other => Err(Fault::new(format!(
                "the expression returned a value of type {}, not a bool",
                other.type_name()
            ))),
        });
        matches
    }

    /// The value of the expression as JSON. The deadline is [`EVALUATION_TIMEOUT`] from now.
    ///
    /// # Errors
    ///
    /// The evaluation fails, its value has no JSON form, or it exceeds a limit.
    pub fn evaluate(&self, device: &DeviceInput) -> Result<serde_json::Value, EvalError> {
        self.run(device, Instant::now() + EVALUATION_TIMEOUT, json::to_json)
            .0
    }

    /// The cost of an evaluation in Kubernetes' cost units. If the evaluation fails, the cost until then.
    pub fn cost(&self, device: &DeviceInput) -> u64 {
        self.run(device, Instant::now() + EVALUATION_TIMEOUT, |_, _| Ok(()))
            .1
    }

    /// Evaluates the expression, and returns the result of `read` and the cost.
    fn run<T: Send>(
        &self,
        device: &DeviceInput,
        deadline: Instant,
        read: impl FnOnce(&Value, &mut Budget) -> Result<T, Fault> + Send,
    ) -> (Result<T, EvalError>, u64) {
        let outcome = stack::with_stack(self.plan.depth > LARGE_STACK_DEPTH, || {
            let budget = Budget::new(deadline);
            let mut interpreter = Interpreter::new(device, self.plan.slots, COST_LIMIT, budget);
            let outcome = interpreter
                .eval(&self.plan.step)
                .and_then(|value| read(&value, &mut interpreter.budget))
                .map_err(|fault| EvalError::from_fault(fault, COST_LIMIT));
            (outcome, interpreter.spent())
        });
        outcome.unwrap_or_else(|message| (Err(EvalError::Failed { message, at: None }), 0))
    }
}
