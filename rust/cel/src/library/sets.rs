//! Lists as sets.

use super::{Signature, global};
use crate::compare;
use crate::fault::Fault;
use crate::value::Value;

#[rustfmt::skip]
pub(super) const TABLE: &[Signature] = &[
    global("list_sets_contains_list", "sets.contains", "list<T>; list<T>", "bool", |args| Ok(Value::Bool(is_subset(&args[1], &args[0])?))),
    global(
        "list_sets_equivalent_list",
        "sets.equivalent",
        "list<T>; list<T>",
        "bool",
        |args| {
            Ok(Value::Bool(
                is_subset(&args[1], &args[0])? && is_subset(&args[0], &args[1])?,
            ))
        },
    ),
    global(
        "list_sets_intersects_list",
        "sets.intersects",
        "list<T>; list<T>",
        "bool",
        |args| {
            let (a, b) = (args[0].as_list()?.items(), args[1].as_list()?.items());
            Ok(Value::Bool(
                a.iter().any(|item| compare::contains(&b, item)),
            ))
        },
    ),
];

fn is_subset(part: &Value, whole: &Value) -> Result<bool, Fault> {
    let (part, whole) = (part.as_list()?.items(), whole.as_list()?.items());
    Ok(part.iter().all(|item| compare::contains(&whole, item)))
}
