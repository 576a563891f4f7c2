//! Follows fields and elements: `device.attributes["domain"].name`, `x.?y`, `list[i]`, `has(x.y)`.

use crate::cost;
use crate::eval::{Machine, describe, element, ending};
use crate::fault::Fault;
use crate::plan::{Base, Hop, HopKey, Path};
use crate::value::Value;

type Outcome = Result<Value, Fault>;

impl<'p> Machine<'p> {
    /// The value of a path that is an expression of its own.
    pub(crate) fn path(&mut self, path: &'p Path) -> Outcome {
        let outcome = ending(self.resolve(path))?;
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

    /// The value of a path as a part of something else: costs what its hops cost.
    fn resolve(&mut self, path: &'p Path) -> Outcome {
        let start = match &path.base {
            Base::Device { .. } => match self.device {
                Some(device) => device.value().clone(),
                None => return Err(Fault::new("no device is known here").at(path.at)),
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
        let outcome = self.follow(start, &path.hops);
        if matches!(path.base, Base::Device { uncounted: true }) {
            self.refund(self.spent() - before)?;
        }
        outcome
    }

    fn follow(&mut self, start: Value, hops: &'p [Hop]) -> Outcome {
        let (mut value, mut optional) = match start {
            Value::Optional(Some(inner)) => (Value::clone(&inner), true),
            none @ Value::Optional(None) => return Ok(none),
            value => (value, false),
        };
        for hop in hops {
            optional |= hop.optional;
            let found = ending_lookup(self.hop(&value, hop, optional))?;
            let present = matches!(found, Ok(Some(_)));
            // A required hop counts even if it leads nowhere, an optional one only if it leads somewhere.
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

    /// What a hop leads to; nothing only where that is allowed.
    fn hop(&mut self, from: &Value, hop: &'p Hop, optional: bool) -> Result<Option<Value>, Fault> {
        let computed;
        let key = match &hop.key {
            HopKey::Const(key) => key,
            HopKey::Path(path) => {
                computed = self.resolve(path)?;
                &computed
            }
            HopKey::Computed(step) => {
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
            .at(hop.at));
        }
        self.budget.scan(key.own_bytes())?;
        let found = lookup(from, key, optional || hop.test).map_err(|fault| fault.at(hop.at))?;
        if hop.test && !optional {
            return Ok(Some(Value::Bool(found.is_some())));
        }
        Ok(found)
    }
}

/// The value under a key; an error if there is none and that is not allowed.
fn lookup(from: &Value, key: &Value, may_miss: bool) -> Result<Option<Value>, Fault> {
    let found = match from {
        Value::Map(map) => map.find(key),
        Value::List(list) => match element(list, key)? {
            None if !may_miss => {
                return Err(Fault::new(format!(
                    "index {} is out of range: the list has {} elements",
                    describe(key),
                    list.len()
                )));
            }
            found => found,
        },
        _ if may_miss => None,
        other => {
            return Err(Fault::new(format!(
                "a value of type {} has no key {}",
                other.type_name(),
                describe(key)
            )));
        }
    };
    match found {
        None if !may_miss => Err(Fault::new(format!("no such key {}", describe(key)))),
        found => Ok(found),
    }
}

fn ending_lookup(
    found: Result<Option<Value>, Fault>,
) -> Result<Result<Option<Value>, Fault>, Fault> {
    match found {
        Err(fault) if fault.ends() => Err(fault),
        other => Ok(other),
    }
}
