//! Lists as sets.

use super::{Signature, global};
use crate::budget::Budget;
use crate::compare;
use crate::fault::Fault;
use crate::value::Value;

#[rustfmt::skip]
pub(super) const TABLE: &[Signature] = &[
    global("list_sets_contains_list", "sets.contains", "list<T>; list<T>", "bool", |args, budget| Ok(Value::Bool(is_subset(&args[1], &args[0], budget)?))),
    global(
        "list_sets_equivalent_list",
        "sets.equivalent",
        "list<T>; list<T>",
        "bool",
        |args, budget| {
            Ok(Value::Bool(
                is_subset(&args[1], &args[0], budget)?
                    && is_subset(&args[0], &args[1], budget)?,
            ))
        },
    ),
    global(
        "list_sets_intersects_list",
        "sets.intersects",
        "list<T>; list<T>",
        "bool",
        |args, budget| {
            let (a, b) = (args[0].as_list()?, args[1].as_list()?);
            let (a, b) = (a.items(budget)?, b.items(budget)?);
            for item in a.iter() {
                if compare::contains(&b, item, budget)? {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        },
    ),
];

fn is_subset(part: &Value, whole: &Value, budget: &mut Budget) -> Result<bool, Fault> {
    let (part, whole) = (part.as_list()?, whole.as_list()?);
    let (part, whole) = (part.items(budget)?, whole.items(budget)?);
    for item in part.iter() {
        if !compare::contains(&whole, item, budget)? {
            return Ok(false);
        }
    }
    Ok(true)
}
