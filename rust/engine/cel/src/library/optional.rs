//! Optional values.

use super::{Signature, global, member};
use crate::budget::Budget;
use crate::fault::Fault;
use crate::value::Value;

#[rustfmt::skip]
pub(super) const TABLE: &[Signature] = &[
    global("optional_of", "optional.of", "V", "optional<V>", |args, budget| budget.some(args[0].clone())),
    global(
        "optional_ofNonZeroValue",
        "optional.ofNonZeroValue",
        "V",
        "optional<V>",
        |args, budget| {
            if args[0].is_zero() {
                Ok(Value::Optional(None))
            } else {
                budget.some(args[0].clone())
            }
        },
    ),
    global("optional_none", "optional.none", "", "optional<V>", |_, _| { Ok(Value::Optional(None)) }),
    member("optional_value", "value", "optional<V>", "V", value),
    member(
        "optional_hasValue",
        "hasValue",
        "optional<V>",
        "bool",
        |args, _| match &args[0] {
            Value::Optional(inner) => Ok(Value::Bool(inner.is_some())),
            other => Err(Fault::no_overload_for(other)),
        },
    ),
    member("optional_or_optional", "or", "optional<V>; optional<V>", "optional<V>", evaluated_elsewhere),
    member("optional_orValue_value", "orValue", "optional<V>; V", "V", evaluated_elsewhere),
    global("select_optional_field", "_?._", "dyn; string", "optional<V>", evaluated_elsewhere),
    member("list_last", "last", "list<V>", "optional<V>", last),
    member("list_first", "first", "list<V>", "optional<V>", first),
    global("optional_unwrap", "optional.unwrap", "list<optional<V>>", "list<V>", unwrap),
    member("optional_unwrapOpt", "unwrapOpt", "list<optional<V>>", "list<V>", unwrap),
];

/// Placeholder for `or` and `orValue`. [`crate::eval`] evaluates their right side only if necessary.
fn evaluated_elsewhere(_: &[Value], _: &mut Budget) -> Result<Value, Fault> {
    Err(Fault::new("the operator is evaluated elsewhere"))
}

fn value(args: &[Value], _: &mut Budget) -> Result<Value, Fault> {
    match &args[0] {
        Value::Optional(Some(inner)) => Ok(Value::clone(inner)),
        Value::Optional(None) => Err(Fault::new("value() of an empty optional")),
        other => Err(Fault::no_overload_for(other)),
    }
}

fn first(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    at(args[0].as_list()?.get(0), budget)
}

fn last(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    let list = args[0].as_list()?;
    let last = list.len().checked_sub(1).and_then(|last| list.get(last));
    at(last, budget)
}

fn at(item: Option<Value>, budget: &mut Budget) -> Result<Value, Fault> {
    match item {
        Some(item) => budget.some(item),
        None => Ok(Value::Optional(None)),
    }
}

fn unwrap(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    let mut values = Vec::new();
    for item in args[0].as_list()?.items(budget)?.iter() {
        match item {
            Value::Optional(Some(inner)) => {
                budget.charge_element()?;
                values.push(Value::clone(inner));
            }
            Value::Optional(None) => {}
            other => return Err(Fault::no_overload_for(other)),
        }
    }
    budget.list(values)
}
