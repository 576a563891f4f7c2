//! Evaluates folds: the loops that macros expand to.

use super::{Frame, Interpreter, Outcome, propagate_fatal};
use crate::fault::Fault;
use crate::plan::{FoldStep, Variable};
use crate::value::{List, Map, Value};

impl<'p> Interpreter<'p> {
    pub(super) fn fold(&mut self, fold: &'p FoldStep) -> Outcome {
        let range = self.eval(&fold.range)?;
        self.frames[fold.slot] = Some(Frame {
            fold,
            accumulator: None,
            grows: false,
            first: Value::Null,
            second: Value::Null,
        });
        let outcome = self.iterate(fold, &range);
        let frame = self.frames[fold.slot].take();
        match outcome {
            Ok(Value::List(list @ List::Growing(_))) if frame.is_some_and(|frame| frame.grows) => {
                self.untrack_accumulator(&Value::List(list.clone()));
                list.finished(&mut self.budget).map(Value::List)
            }
            Ok(Value::Map(map @ Map::Growing(_))) => {
                self.untrack_accumulator(&Value::Map(map.clone()));
                map.finished(&mut self.budget).map(Value::Map)
            }
            other => other,
        }
    }

    fn iterate(&mut self, fold: &'p FoldStep, range: &Value) -> Outcome {
        match range {
            Value::List(list) => {
                for (at, item) in list.items(&mut self.budget)?.iter().enumerate() {
                    let index = Value::Int(at as i64);
                    let (first, second) = if fold.two_variables {
                        (index, item.clone())
                    } else {
                        (item.clone(), index)
                    };
                    if !self.iteration(fold, first, second)? {
                        break;
                    }
                }
            }
            Value::Map(map) => {
                for (key, value) in map.entries(&mut self.budget)?.iter() {
                    if !self.iteration(fold, key.clone(), value.clone())? {
                        break;
                    }
                }
            }
            other => return Err(Fault::no_overload_for(other).at(fold.at)),
        }
        self.eval(&fold.result)
    }

    /// Runs one iteration of a loop. Returns false at the end of the loop.
    fn iteration(
        &mut self,
        fold: &'p FoldStep,
        first: Value,
        second: Value,
    ) -> Result<bool, Fault> {
        if let Some(frame) = &mut self.frames[fold.slot] {
            frame.first = first;
            frame.second = second;
        }
        match self.eval(&fold.condition) {
            Ok(Value::Bool(false)) => return Ok(false),
            Err(fault) if fault.is_fatal() => return Err(fault),
            _ => {}
        }
        let outcome = propagate_fatal(self.eval(&fold.step))?;
        if let Some(frame) = &mut self.frames[fold.slot] {
            frame.accumulator = Some(outcome);
        }
        Ok(true)
    }

    /// Charges an accumulator, and records it for `drop`.
    fn track_accumulator(&mut self, value: Value) -> Outcome {
        self.budget.charge_shared()?;
        self.budget.charge_element()?;
        self.accumulators.push(value.clone());
        Ok(value)
    }

    /// Removes a finished accumulator from the record, unless an inner one is still recorded.
    fn untrack_accumulator(&mut self, value: &Value) {
        let recorded = self
            .accumulators
            .last()
            .is_some_and(|last| match (last, value) {
                (Value::List(a), Value::List(b)) => a.is_same(b),
                (Value::Map(a), Value::Map(b)) => a.is_same(b),
                _ => false,
            });
        if recorded {
            self.accumulators.pop();
        }
    }

    /// The value of a variable of a loop.
    pub(crate) fn local(&mut self, slot: usize, variable: Variable) -> Outcome {
        let out_of_scope = || Fault::new("the variable is out of scope");
        let frame = self.frames[slot].as_ref().ok_or_else(out_of_scope)?;
        match (variable, &frame.accumulator) {
            (Variable::First, _) => return Ok(frame.first.clone()),
            (Variable::Second, _) => return Ok(frame.second.clone()),
            (Variable::Accumulator, Some(outcome)) => return outcome.clone(),
            (Variable::Accumulator, None) => {}
        }
        let fold = frame.fold;
        let (outcome, grows) = match propagate_fatal(self.eval(&fold.init))? {
            Ok(Value::List(list)) if list.len() == 0 => (
                Ok(self.track_accumulator(Value::List(List::growing()))?),
                true,
            ),
            Ok(Value::Map(map)) if map.len() == 0 => (
                Ok(self.track_accumulator(Value::Map(Map::growing()))?),
                true,
            ),
            other => (other, false),
        };
        if let Some(frame) = &mut self.frames[slot] {
            frame.accumulator = Some(outcome.clone());
            frame.grows = grows;
        }
        outcome
    }
}

/// Breaks the reference cycle of a list or map that contains itself.
impl Drop for Interpreter<'_> {
    fn drop(&mut self) {
        for value in &self.accumulators {
            match value {
                Value::List(list) => list.clear(),
                Value::Map(map) => map.clear(),
                _ => {}
            }
        }
    }
}
