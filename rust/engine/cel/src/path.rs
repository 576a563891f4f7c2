//! Evaluates paths of fields and elements: `device.attributes["domain"].name`, `x.?y`, `list[i]`, `has(x.y)`.

use crate::cost;
use crate::eval::{Interpreter, describe, element, propagate_fatal};
use crate::fault::Fault;
use crate::plan::{Base, Path, PathSegment, SegmentKey};
use crate::value::Value;

type Outcome = Result<Value, Fault>;

impl<'p> Interpreter<'p> {
    /// The value of a path that is an expression, including the cost of the expression.
    pub(crate) fn path(&mut self, path: &'p Path) -> Outcome {
        let outcome = propagate_fatal(self.resolve(path))?;
        if !matches!(path.base, Base::Choice { .. }) {
            self.charge(cost::ACCESS)?;
        }
        if path.test {
            self.refund(cost::ACCESS)?;
            if let Ok(Value::Optional(inner)) = &outcome {
                return Ok(Value::Bool(inner.is_some()));
            }
        }
        outcome
    }

    /// The value of a path as part of another one. Costs only its segments.
    fn resolve(&mut self, path: &'p Path) -> Outcome {
        let start = match &path.base {
            Base::Device { .. } => match self.device {
                Some(device) => device.value().clone(),
                None => return Err(Fault::new("no device is available here").at(path.at)),
            },
            Base::Local { slot, variable } => self.local(*slot, *variable)?,
            Base::Value(step) => self.eval(step)?,
            Base::Choice {
                condition,
                branches,
            } => {
                return match self.eval(condition)? {
                    Value::Bool(true) => self.resolve(&branches.0),
                    Value::Bool(false) => self.resolve(&branches.1),
                    other => Err(Fault::no_overload_for(&other).at(path.at)),
                };
            }
        };
        let before = self.spent();
        let outcome = self.follow(start, &path.segments);
        if matches!(path.base, Base::Device { uncounted: true }) {
            self.refund(self.spent() - before)?;
        }
        outcome
    }

    fn follow(&mut self, start: Value, segments: &'p [PathSegment]) -> Outcome {
        let (mut value, mut optional) = match start {
            Value::Optional(Some(inner)) => (Value::clone(&inner), true),
            none @ Value::Optional(None) => return Ok(none),
            value => (value, false),
        };
        for segment in segments {
            optional |= segment.optional;
            let found = propagate_fatal(self.segment(&value, segment, optional))?;
            let present = matches!(found, Ok(Some(_)));
            // A required segment has a cost also if it does not exist, an optional one only if it exists.
            if !optional || present {
                self.charge(cost::ACCESS)?;
            }
            match found? {
                Some(next) => value = next,
                None => return Ok(Value::Optional(None)),
            }
        }
        if optional {
            self.budget.some(value)
        } else {
            Ok(value)
        }
    }

    /// The value of a segment; `None` only if the segment is optional.
    fn segment(
        &mut self,
        from: &Value,
        segment: &'p PathSegment,
        optional: bool,
    ) -> Result<Option<Value>, Fault> {
        let computed;
        let key = match &segment.key {
            SegmentKey::Const(key) => key,
            SegmentKey::Path(path) => {
                computed = self.resolve(path)?;
                &computed
            }
            SegmentKey::Computed(step) => {
                computed = self.eval(step)?;
                &computed
            }
        };
        if !matches!(
            key,
            Value::Bool(_) | Value::Int(_) | Value::Uint(_) | Value::Double(_) | Value::String(_)
        ) {
            return Err(Fault::new(format!(
                "a value of type {} cannot be an index",
                key.type_name()
            ))
            .at(segment.at));
        }
        self.budget.scan(key.own_bytes())?;
        let found =
            lookup(from, key, optional || segment.test).map_err(|fault| fault.at(segment.at))?;
        if segment.test && !optional {
            return Ok(Some(Value::Bool(found.is_some())));
        }
        Ok(found)
    }
}

/// The value of a key. A missing key is an error, unless it is optional.
fn lookup(from: &Value, key: &Value, optional: bool) -> Result<Option<Value>, Fault> {
    let found = match from {
        Value::Map(map) => map.find(key),
        Value::List(list) => match element(list, key)? {
            None if !optional => {
                return Err(Fault::new(format!(
                    "index {} is out of range: the list has {} elements",
                    describe(key),
                    list.len()
                )));
            }
            found => found,
        },
        _ if optional => None,
        other => {
            return Err(Fault::new(format!(
                "a value of type {} has no key {}",
                other.type_name(),
                describe(key)
            )));
        }
    };
    match found {
        None if !optional => Err(Fault::new(format!("no such key {}", describe(key)))),
        found => Ok(found),
    }
}
