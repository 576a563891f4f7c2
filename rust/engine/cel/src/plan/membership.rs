//! Optimizes `in` with a constant list to a set lookup.

use std::collections::HashSet;
use std::sync::Arc;

use super::Step;
use crate::error::Position;
use crate::map::{Key, lossless_int, lossless_uint};
use crate::value::{List, Value};

/// The set lookup for `in` with a constant list of plain values. As in Kubernetes, it has no cost.
pub(super) fn in_constant_list(args: &[Step], at: Position) -> Option<Step> {
    let [value, Step::Const(Value::List(List::Fixed(items)))] = args else {
        return None;
    };
    if items.is_empty() {
        return Some(Step::Const(Value::Bool(false)));
    }
    let mut set = HashSet::new();
    for item in items.iter() {
        let plain = matches!(
            item,
            Value::Bool(_) | Value::Int(_) | Value::Uint(_) | Value::Double(_) | Value::String(_)
        );
        if !plain {
            return None;
        }
        let keys = std::iter::once(item.clone()).chain(equal_numbers(item));
        set.extend(keys.filter_map(|key| Key::of(&key).ok()));
    }
    Some(Step::InSet {
        value: Box::new(value.clone()),
        set: Arc::new(set),
        at,
    })
}

/// The same number in the other numeric types.
fn equal_numbers(value: &Value) -> Vec<Value> {
    let mut same = Vec::new();
    match value {
        Value::Double(value) => {
            same.extend(lossless_int(*value).map(Value::Int));
            same.extend(lossless_uint(*value).map(Value::Uint));
        }
        Value::Int(value) => {
            same.push(Value::Double(*value as f64));
            same.extend(u64::try_from(*value).ok().map(Value::Uint));
        }
        Value::Uint(value) => {
            same.push(Value::Double(*value as f64));
            same.extend(i64::try_from(*value).ok().map(Value::Int));
        }
        _ => {}
    }
    same
}
