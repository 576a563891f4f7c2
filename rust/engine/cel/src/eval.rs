//! Evaluates the steps of a plan and counts their cost as Kubernetes does.
//!
//! An expression that exceeds the cost limit is an error, so the cost must equal that of Kubernetes at each step,
//! including operations that Kubernetes does not count.

use std::sync::Arc;

use crate::budget::Budget;
use crate::compare;
use crate::cost;
use crate::device::DeviceInput;
use crate::error::Position;
use crate::fault::Fault;
use crate::library;
use crate::map::{Entries, Key};
use crate::plan::{Call, FoldStep, Step};
use crate::value::{Kind, List, Map, Value};

mod fold;

type Outcome = Result<Value, Fault>;

/// The state of one evaluation.
pub(crate) struct Interpreter<'p> {
    pub(crate) device: Option<&'p DeviceInput>,
    frames: Vec<Option<Frame<'p>>>,
    spent: u64,
    limit: u64,
    pub(crate) budget: Budget,
    /// Lists and maps that macros accumulate. They can contain themselves, so `drop` clears them.
    accumulators: Vec<Value>,
}

/// A running loop.
struct Frame<'p> {
    fold: &'p FoldStep,
    /// Computed at its first use.
    accumulator: Option<Outcome>,
    grows: bool,
    first: Value,
    second: Value,
}

impl<'p> Interpreter<'p> {
    pub(crate) fn new(device: &'p DeviceInput, slots: usize, limit: u64, budget: Budget) -> Self {
        Self {
            device: Some(device),
            frames: std::iter::repeat_with(|| None).take(slots).collect(),
            spent: 0,
            limit,
            budget,
            accumulators: Vec::new(),
        }
    }

    /// The value of a step that does not depend on a device.
    pub(crate) fn constant(step: &Step) -> Outcome {
        Interpreter {
            device: None,
            frames: Vec::new(),
            spent: 0,
            limit: u64::MAX,
            budget: Budget::for_constants(),
            accumulators: Vec::new(),
        }
        .eval(step)
    }

    /// The cost so far, in Kubernetes' cost units.
    pub(crate) fn spent(&self) -> u64 {
        self.spent
    }

    pub(crate) fn charge(&mut self, cost: u64) -> Result<(), Fault> {
        self.spent = self.spent.saturating_add(cost);
        if self.spent > self.limit {
            Err(Fault::TooExpensive)
        } else {
            Ok(())
        }
    }

    /// Subtracts the cost of a path that is a presence test.
    pub(crate) fn refund(&mut self, cost: u64) -> Result<(), Fault> {
        self.spent = self.spent.wrapping_sub(cost);
        self.charge(0)
    }

    pub(crate) fn eval(&mut self, step: &'p Step) -> Outcome {
        self.budget.count_steps(1)?;
        match step {
            Step::Const(value) => Ok(value.clone()),
            Step::Path(path) => self.path(path),
            Step::Call(call) => self.call(call),
            Step::And(terms, at) => self.logical(terms, false, *at),
            Step::Or(terms, at) => self.logical(terms, true, *at),
            Step::Equal { sides, negated, at } => self.equal(sides, *negated, *at),
            Step::NotStrictlyFalse(arg) => {
                let value = match self.eval(arg) {
                    Err(fault) if fault.is_fatal() => return Err(fault),
                    Ok(value @ Value::Bool(_)) => value,
                    _ => Value::Bool(true),
                };
                self.charge(1)?;
                Ok(value)
            }
            Step::InSet { value, set, at } => {
                let value = self.eval(value)?;
                self.budget.scan(value.own_bytes())?;
                let key = Key::of(&value).map_err(|fault| fault.at(*at).fatal())?;
                Ok(Value::Bool(set.contains(&key)))
            }
            Step::Either { sides, unwrap, at } => match self.eval(&sides.0)? {
                Value::Optional(Some(inner)) if *unwrap => Ok(Value::clone(&inner)),
                found @ Value::Optional(Some(_)) => Ok(found),
                Value::Optional(None) => self.eval(&sides.1),
                other => Err(Fault::no_overload_for(&other).at(*at)),
            },
            Step::List { items, at } => {
                let outcome = self.list(items, *at);
                self.charge_literal(outcome, cost::CREATE_LIST)
            }
            Step::Map { entries, at } => {
                let outcome = self.map(entries, *at);
                self.charge_literal(outcome, cost::CREATE_MAP)
            }
            Step::Fold(fold) => self.fold(fold),
        }
    }

    /// Charges the cost of a list or map literal, also if one of its elements failed.
    fn charge_literal(&mut self, outcome: Outcome, cost: u64) -> Outcome {
        if let Err(fault) = &outcome
            && fault.is_fatal()
        {
            return outcome;
        }
        self.charge(cost)?;
        outcome
    }

    /// `&&` or, with `decided` true, `||`: the first term with the value `decided` wins, also over earlier errors.
    fn logical(&mut self, terms: &'p [Step], decided: bool, at: Position) -> Outcome {
        let mut error = None;
        for term in terms {
            match self.eval(term) {
                Ok(Value::Bool(value)) if value == decided => return Ok(Value::Bool(decided)),
                Ok(Value::Bool(_)) => {}
                Ok(other) => error = error.or_else(|| Some(Fault::no_overload_for(&other).at(at))),
                Err(fault) if fault.is_fatal() => return Err(fault),
                Err(fault) => error = error.or(Some(fault)),
            }
        }
        error.map_or(Ok(Value::Bool(!decided)), Err)
    }

    fn equal(&mut self, sides: &'p (Step, Step), negated: bool, at: Position) -> Outcome {
        let a = propagate_fatal(self.eval(&sides.0))?;
        let b = propagate_fatal(self.eval(&sides.1))?;
        let args = [
            a.clone().unwrap_or(Value::Null),
            b.clone().unwrap_or(Value::Null),
        ];
        self.budget
            .scan(args[0].own_bytes() + args[1].own_bytes())?;
        self.charge(cost::equality_cost(&args, negated))?;
        a?;
        b?;
        match compare::equal(&args[0], &args[1], &mut self.budget) {
            Ok(same) => Ok(Value::Bool(same != negated)),
            Err(fault) if fault.is_fatal() => Err(fault),
            Err(_) if negated => Ok(Value::Bool(true)),
            Err(fault) => Err(fault.at(at)),
        }
    }

    fn call(&mut self, call: &'p Call) -> Outcome {
        let mut args = Vec::with_capacity(call.args.len());
        let mut error = None;
        for arg in &call.args {
            match self.eval(arg) {
                Ok(value) => args.push(value),
                Err(fault) if fault.is_fatal() => return Err(fault),
                // For calls with an argument list Kubernetes stops at the first failed argument, and counts nothing.
                Err(fault) if call.stops_at_error() && args.len() + 1 < call.args.len() => {
                    return Err(fault);
                }
                Err(fault) => {
                    error = error.or(Some(fault));
                    args.push(Value::Null);
                }
            }
        }
        if let Some(fault) = error {
            if call.rule.needs_list(&args) {
                return Err(fault.fatal());
            }
            let cost = call.rule.cost(&args, None, &mut self.budget)?;
            self.charge(cost)?;
            return Err(fault);
        }
        let charged_before = call.rule.is_known_before_call();
        if charged_before {
            let cost = call.rule.cost(&args, None, &mut self.budget)?;
            self.charge(cost)?;
        }
        let bytes = args.iter().map(Value::own_bytes).sum();
        self.budget.scan(bytes)?;
        let outcome = call
            .apply(&args, &mut self.budget)
            .map_err(|fault| fault.at(call.at));
        if charged_before || matches!(&outcome, Err(fault) if fault.is_fatal()) {
            return outcome;
        }
        let cost = call
            .rule
            .cost(&args, outcome.as_ref().ok(), &mut self.budget)?;
        self.charge(cost)?;
        outcome
    }

    fn list(&mut self, items: &'p [(Step, bool)], at: Position) -> Outcome {
        self.budget.charge_values(items.len() + 1)?;
        let mut values = Vec::with_capacity(items.len());
        for (item, optional) in items {
            match (self.eval(item)?, optional) {
                (Value::Optional(inner), true) => {
                    values.extend(inner.map(|inner| Value::clone(&inner)))
                }
                (other, true) => return Err(Fault::no_overload_for(&other).at(at)),
                (value, false) => values.push(value),
            }
        }
        Ok(Value::list(values))
    }

    fn map(&mut self, steps: &'p [(Step, Step, bool)], at: Position) -> Outcome {
        let mut entries = Entries::default();
        for (key, value, optional) in steps {
            let key = self.eval(key)?;
            self.budget.scan(key.own_bytes())?;
            self.budget.charge_entry()?;
            let changed = match (self.eval(value)?, optional) {
                (Value::Optional(Some(inner)), true) => entries.insert(key, Value::clone(&inner)),
                (Value::Optional(None), true) => entries.remove(&key),
                (other, true) => return Err(Fault::no_overload_for(&other).at(at)),
                (value, false) => entries.insert(key, value),
            };
            changed.map_err(|fault| fault.at(at).fatal())?;
        }
        Ok(Value::Map(Map::fixed(entries)))
    }
}

/// Separates faults that end the evaluation, which `?` propagates, from other outcomes, which the caller handles.
pub(crate) fn propagate_fatal<T>(outcome: Result<T, Fault>) -> Result<Result<T, Fault>, Fault> {
    match outcome {
        Err(fault) if fault.is_fatal() => Err(fault),
        other => Ok(other),
    }
}

// === impl Call ===

impl Call {
    fn stops_at_error(&self) -> bool {
        let undecided = self.overloads.len() > 1 && !self.overloads[0].is_unguarded();
        undecided || self.args.len() > 2 || self.function == "format" || self.pattern.is_some()
    }

    fn apply(&self, args: &[Value], budget: &mut Budget) -> Outcome {
        if let Some(pattern) = &self.pattern {
            return library::regex::call(self.function, pattern, args, budget);
        }
        if let Some(first) = self.overloads.first().filter(|first| first.is_unguarded()) {
            return (first.call)(args, budget);
        }
        match self
            .overloads
            .iter()
            .find(|overload| overload.accepts(args))
        {
            Some(overload) => (overload.call)(args, budget),
            None => Err(self.no_overload(args)),
        }
    }

    fn no_overload(&self, args: &[Value]) -> Fault {
        let names: Vec<&str> = args.iter().map(Value::type_name).collect();
        Fault::new(format!(
            "{}({}) is not defined",
            self.function,
            names.join(", ")
        ))
    }
}

/// The element of a list at an index of any number type.
pub(crate) fn element(list: &List, index: &Value) -> Result<Option<Value>, Fault> {
    let at = match index {
        Value::Int(at) => Some(*at),
        Value::Uint(at) => i64::try_from(*at).ok(),
        Value::Double(at) => crate::map::lossless_int(*at),
        _ => None,
    };
    let at = at.ok_or_else(|| {
        Fault::new(format!(
            "a value of type {} is not a valid list index",
            index.type_name()
        ))
    })?;
    Ok(usize::try_from(at).ok().and_then(|at| list.get(at)))
}

/// The form of a key in messages about missing keys.
pub(crate) fn describe(key: &Value) -> Arc<str> {
    match key.kind() {
        Kind::String => key.as_str().map_or_else(
            |_| Arc::from(""),
            |text| Arc::from(crate::fault::excerpt(text)),
        ),
        _ => match key {
            Value::Int(at) => Arc::from(at.to_string()),
            Value::Uint(at) => Arc::from(at.to_string()),
            other => Arc::from(format!("of type {}", other.type_name())),
        },
    }
}
