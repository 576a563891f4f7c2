//! Goes through the loops that macros are made of.

use super::{Frame, Machine, Outcome, ending};
use crate::fault::Fault;
use crate::plan::{FoldStep, Variable};
use crate::value::{List, Map, Value};

impl<'p> Machine<'p> {
    pub(super) fn fold(&mut self, fold: &'p FoldStep) -> Outcome {
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
                self.forget_growing(&Value::List(list.clone()));
                list.finished(&mut self.budget).map(Value::List)
            }
            Ok(Value::Map(map @ Map::Growing(_))) => {
                self.forget_growing(&Value::Map(map.clone()));
                map.finished(&mut self.budget).map(Value::Map)
            }
            other => other,
        }
    }

    fn go_through(&mut self, fold: &'p FoldStep, range: &Value) -> Outcome {
        match range {
            Value::List(list) => {
                for (at, item) in list.items(&mut self.budget)?.iter().enumerate() {
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
                for (key, value) in map.entries(&mut self.budget)?.iter() {
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

    /// Notes what a macro accumulates.
    fn growing(&mut self, value: Value) -> Outcome {
        self.budget.take_shared()?;
        self.budget.take_element()?;
        self.growing.push(value.clone());
        Ok(value)
    }

    /// What is finished needs no freeing by hand, unless a part of the result still has it.
    fn forget_growing(&mut self, value: &Value) {
        let noted = self.growing.last().is_some_and(|last| match (last, value) {
            (Value::List(a), Value::List(b)) => a.is_same(b),
            (Value::Map(a), Value::Map(b)) => a.is_same(b),
            _ => false,
        });
        if noted {
            self.growing.pop();
        }
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
            Ok(Value::List(list)) if list.len() == 0 => {
                (Ok(self.growing(Value::List(List::growing()))?), true)
            }
            Ok(Value::Map(map)) if map.len() == 0 => {
                (Ok(self.growing(Value::Map(Map::growing()))?), true)
            }
            other => (other, false),
        };
        if let Some(frame) = &mut self.frames[slot] {
            frame.accumulator = Some(outcome.clone());
            frame.grows = grows;
        }
        outcome
    }
}

/// A list that contains itself holds itself.
impl Drop for Machine<'_> {
    fn drop(&mut self) {
        for value in &self.growing {
            match value {
                Value::List(list) => list.clear(),
                Value::Map(map) => map.clear(),
                _ => {}
            }
        }
    }
}
