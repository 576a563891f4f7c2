//! Takes the steps of a plan, and counts what they cost as Kubernetes does.
//!
//! Costs are part of the result: an expression that is too expensive is an error, so they follow Kubernetes' evaluation step
//! by step, also in what it happens not to count.

use std::sync::Arc;

use crate::compare;
use crate::cost;
use crate::device::DeviceInput;
use crate::fault::Fault;
use crate::map::{Entries, Key};
use crate::plan::{Call, FoldStep, Step, Variable};
use crate::position::Position;
use crate::room;
use crate::value::{Kind, List, Map, Value};

type Outcome = Result<Value, Fault>;

/// One evaluation.
pub(crate) struct Machine<'p> {
    pub(crate) device: Option<&'p DeviceInput>,
    frames: Vec<Option<Frame<'p>>>,
    spent: u64,
    limit: u64,
    /// Elements that were copied into joined lists, which Kubernetes only links.
    copied: usize,
}

/// A loop that is being gone through.
struct Frame<'p> {
    fold: &'p FoldStep,
    /// Computed when it is first asked for.
    accumulator: Option<Outcome>,
    grows: bool,
    first: Value,
    second: Value,
}

impl<'p> Machine<'p> {
    pub(crate) fn new(device: &'p DeviceInput, slots: usize, limit: u64) -> Self {
        Self {
            device: Some(device),
            frames: std::iter::repeat_with(|| None).take(slots).collect(),
            spent: 0,
            limit,
            copied: 0,
        }
    }

    /// The value of a step that needs no device.
    pub(crate) fn constant(step: &Step) -> Outcome {
        Machine {
            device: None,
            frames: Vec::new(),
            spent: 0,
            limit: u64::MAX,
            copied: 0,
        }
        .eval(step)
    }

    /// What was spent so far.
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

    /// Takes back the cost of a name that turned out to be a presence test.
    pub(crate) fn refund(&mut self, cost: u64) -> Result<(), Fault> {
        self.spent = self.spent.wrapping_sub(cost);
        self.charge(0)
    }

    pub(crate) fn eval(&mut self, step: &'p Step) -> Outcome {
        match step {
            Step::Const(value) => Ok(value.clone()),
            Step::Path(path) => self.path(path),
            Step::Call(call) => self.call(call),
            Step::And(terms, at) => self.logical(terms, false, *at),
            Step::Or(terms, at) => self.logical(terms, true, *at),
            Step::Equal { sides, negated, at } => self.equal(sides, *negated, *at),
            Step::NotStrictlyFalse(arg) => {
                let value = match self.eval(arg) {
                    Err(fault) if fault.ends() => return Err(fault),
                    Ok(value @ Value::Bool(_)) => value,
                    _ => Value::Bool(true),
                };
                self.charge(1)?;
                Ok(value)
            }
            Step::InSet { value, set, at } => {
                let key = Key::of(&self.eval(value)?).map_err(|fault| fault.at(*at).fatal())?;
                Ok(Value::Bool(set.contains(&key)))
            }
            Step::Either { sides, unwrap, at } => match self.eval(&sides.0)? {
                Value::Optional(Some(inner)) if *unwrap => Ok(Value::clone(&inner)),
                found @ Value::Optional(Some(_)) => Ok(found),
                Value::Optional(None) => self.eval(&sides.1),
                other => Err(Fault::no_overload_for(&other).at(*at)),
            },
            Step::List { items, at } => {
                let made = self.list(items, *at);
                self.made(made, cost::CREATE_LIST)
            }
            Step::Map { entries, at } => {
                let made = self.map(entries, *at);
                self.made(made, cost::CREATE_MAP)
            }
            Step::Fold(fold) => self.fold(fold),
        }
    }

    /// Charges for a literal, whether it could be made or not.
    fn made(&mut self, made: Outcome, cost: u64) -> Outcome {
        if let Err(fault) = &made
            && fault.ends()
        {
            return made;
        }
        self.charge(cost)?;
        made
    }

    /// `&&` or, with `decided` true, `||`: the first term that decides wins, also over errors before it.
    fn logical(&mut self, terms: &'p [Step], decided: bool, at: Position) -> Outcome {
        let mut error = None;
        for term in terms {
            match self.eval(term) {
                Ok(Value::Bool(value)) if value == decided => return Ok(Value::Bool(decided)),
                Ok(Value::Bool(_)) => {}
                Ok(other) => error = error.or_else(|| Some(Fault::no_overload_for(&other).at(at))),
                Err(fault) if fault.ends() => return Err(fault),
                Err(fault) => error = error.or(Some(fault)),
            }
        }
        error.map_or(Ok(Value::Bool(!decided)), Err)
    }

    fn equal(&mut self, sides: &'p (Step, Step), negated: bool, at: Position) -> Outcome {
        let a = ending(self.eval(&sides.0))?;
        let b = ending(self.eval(&sides.1))?;
        let args = [
            a.clone().unwrap_or(Value::Null),
            b.clone().unwrap_or(Value::Null),
        ];
        self.charge(cost::of_equality(&args, negated))?;
        a?;
        b?;
        match compare::equal(&args[0], &args[1]) {
            Ok(same) => Ok(Value::Bool(same != negated)),
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
                Err(fault) if fault.ends() => return Err(fault),
                // Kubernetes stops at the first that fails where it calls by a list of arguments, and counts nothing.
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
            self.charge(call.rule.cost(&args, None))?;
            return Err(fault);
        }
        self.make_room(call.function, &args)?;
        let outcome = call.apply(&args).map_err(|fault| fault.at(call.at));
        if let Err(fault) = &outcome
            && fault.ends()
        {
            return outcome;
        }
        self.charge(call.rule.cost(&args, outcome.as_ref().ok()))?;
        outcome
    }

    /// Before lists are joined: what that copies counts, as it costs Kubernetes next to nothing.
    fn make_room(&mut self, function: &str, args: &[Value]) -> Result<(), Fault> {
        if let [Value::List(first), Value::List(second)] = args
            && function == "_+_"
        {
            let grows = matches!(first, List::Growing(_));
            self.copied += second.len() + if grows { 0 } else { first.len() };
            room::for_elements(self.copied)?;
        }
        Ok(())
    }

    fn list(&mut self, items: &'p [(Step, bool)], at: Position) -> Outcome {
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

    fn fold(&mut self, fold: &'p FoldStep) -> Outcome {
        let range = self.eval(&fold.range)?;
        self.frames[fold.slot] = Some(Frame {
            fold,
            accumulator: None,
            grows: false,
            first: Value::Null,
            second: Value::Null,
        });
        let outcome = self.go_through(fold, &range);
        let frame = self.frames[fold.slot].take();
        match outcome {
            Ok(Value::List(list @ List::Growing(_))) if frame.is_some_and(|frame| frame.grows) => {
                Ok(Value::List(List::Fixed(list.items())))
            }
            Ok(Value::Map(map @ Map::Growing(_))) => Ok(Value::Map(Map::Fixed(map.entries()))),
            other => other,
        }
    }

    fn go_through(&mut self, fold: &'p FoldStep, range: &Value) -> Outcome {
        match range {
            Value::List(list) => {
                for (at, item) in list.items().iter().enumerate() {
                    let index = Value::Int(at as i64);
                    let (first, second) = if fold.two_variables {
                        (index, item.clone())
                    } else {
                        (item.clone(), index)
                    };
                    if !self.turn(fold, first, second)? {
                        break;
                    }
                }
            }
            Value::Map(map) => {
                for (key, value) in map.entries().iter() {
                    if !self.turn(fold, key.clone(), value.clone())? {
                        break;
                    }
                }
            }
            other => return Err(Fault::no_overload_for(other).at(fold.at)),
        }
        self.eval(&fold.result)
    }

    /// One turn of a loop; false when the loop is over.
    fn turn(&mut self, fold: &'p FoldStep, first: Value, second: Value) -> Result<bool, Fault> {
        if let Some(frame) = &mut self.frames[fold.slot] {
            frame.first = first;
            frame.second = second;
        }
        match self.eval(&fold.condition) {
            Ok(Value::Bool(false)) => return Ok(false),
            Err(fault) if fault.ends() => return Err(fault),
            _ => {}
        }
        let outcome = ending(self.eval(&fold.step))?;
        if let Some(frame) = &mut self.frames[fold.slot] {
            frame.accumulator = Some(outcome);
        }
        Ok(true)
    }

    /// The value of a variable of a loop.
    pub(crate) fn local(&mut self, slot: usize, variable: Variable) -> Outcome {
        let gone = || Fault::new("the variable is out of scope");
        let frame = self.frames[slot].as_ref().ok_or_else(gone)?;
        match (variable, &frame.accumulator) {
            (Variable::First, _) => return Ok(frame.first.clone()),
            (Variable::Second, _) => return Ok(frame.second.clone()),
            (Variable::Accumulator, Some(outcome)) => return outcome.clone(),
            (Variable::Accumulator, None) => {}
        }
        let fold = frame.fold;
        let (outcome, grows) = match ending(self.eval(&fold.init))? {
            Ok(Value::List(list)) if list.len() == 0 => (Ok(Value::List(List::growing())), true),
            Ok(Value::Map(map)) if map.len() == 0 => (Ok(Value::Map(Map::growing())), true),
            other => (other, false),
        };
        if let Some(frame) = &mut self.frames[slot] {
            frame.accumulator = Some(outcome.clone());
            frame.grows = grows;
        }
        outcome
    }
}

/// Passes on what ends the evaluation; any other outcome is for the caller.
pub(crate) fn ending(outcome: Outcome) -> Result<Outcome, Fault> {
    match outcome {
        Err(fault) if fault.ends() => Err(fault),
        other => Ok(other),
    }
}

// === impl Call ===

impl Call {
    fn stops_at_error(&self) -> bool {
        let undecided = self.overloads.len() > 1 && !self.overloads[0].is_unguarded();
        undecided || self.args.len() > 2 || self.function == "format" || self.has_constant_pattern
    }

    fn apply(&self, args: &[Value]) -> Outcome {
        if let Some(first) = self.overloads.first().filter(|first| first.is_unguarded()) {
            return (first.call)(args);
        }
        match self
            .overloads
            .iter()
            .find(|overload| overload.accepts(args))
        {
            Some(overload) => (overload.call)(args),
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
            "a value of type {} is no index of a list",
            index.type_name()
        ))
    })?;
    Ok(usize::try_from(at).ok().and_then(|at| list.get(at)))
}

/// What a value is called in messages about missing keys.
pub(crate) fn describe(key: &Value) -> Arc<str> {
    match key.kind() {
        Kind::String => key
            .as_str()
            .map_or_else(|_| Arc::from(""), |text| Arc::from(format!("{text:?}"))),
        _ => match key {
            Value::Int(at) => Arc::from(at.to_string()),
            Value::Uint(at) => Arc::from(at.to_string()),
            other => Arc::from(format!("of type {}", other.type_name())),
        },
    }
}
