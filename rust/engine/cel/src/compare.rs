//! Equality and order of values.

use std::cmp::Ordering;

use crate::budget::Budget;
use crate::fault::Fault;
use crate::value::{Amount, List, Map, Value};

/// `a == b` of CEL: numbers of any types by value, lists and maps by their elements, `false` for values of different
/// types. The comparison of a Kubernetes type with another type is an error.
pub(crate) fn equal(a: &Value, b: &Value, budget: &mut Budget) -> Result<bool, Fault> {
    budget.count_steps(1)?;
    Ok(match (a, b) {
        (Value::Null, other) | (other, Value::Null) => matches!(other, Value::Null),
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Int(_) | Value::Uint(_) | Value::Double(_), _) => {
            numbers(a, b) == Some(Ordering::Equal)
        }
        (Value::String(a), Value::String(b)) => {
            budget.scan(a.len().min(b.len()))?;
            a == b
        }
        (Value::Bytes(a), Value::Bytes(b)) => {
            budget.scan(a.len().min(b.len()))?;
            a == b
        }
        (Value::Duration(a), Value::Duration(b)) => a == b,
        (Value::Timestamp(a), Value::Timestamp(b)) => a.instant() == b.instant(),
        (Value::Type(a), Value::Type(b)) => a == b,
        (Value::List(a), Value::List(b)) => {
            return Ok(a.len() == b.len() && budget.within(|budget| same_items(a, b, budget))?);
        }
        (Value::Map(a), Value::Map(b)) => {
            return Ok(a.len() == b.len() && budget.within(|budget| same_entries(a, b, budget))?);
        }
        (Value::Optional(a), Value::Optional(b)) => match (a, b) {
            (Some(a), Some(b)) => return budget.within(|budget| equal(a, b, budget)),
            (a, b) => a.is_none() && b.is_none(),
        },
        (Value::Quantity(a), Value::Quantity(b)) => return amounts(a, b),
        (Value::Semver(a), Value::Semver(b)) => a.cmp_precedence(b).is_eq(),
        (Value::Url(a), Value::Url(b)) => a.text() == b.text(),
        (Value::Ip(a), Value::Ip(b)) => a == b,
        (Value::Cidr(a, m), Value::Cidr(b, n)) => a == b && m == n,
        (Value::Format(a), Value::Format(b)) => a.title == b.title,
        (
            Value::Quantity(_)
            | Value::Semver(_)
            | Value::Url(_)
            | Value::Ip(_)
            | Value::Cidr(..)
            | Value::Format(_),
            other,
        ) => {
            return Err(Fault::new(format!(
                "{} == {} is not defined",
                a.type_name(),
                other.type_name()
            )));
        }
        _ => false,
    })
}

fn amounts(a: &Amount, b: &Amount) -> Result<bool, Fault> {
    if b.computed {
        return Err(Fault::new(
            "the result of add() or sub() on the right of == is not defined; use compareTo()",
        ));
    }
    Ok(a.quantity == b.quantity)
}

fn same_items(a: &List, b: &List, budget: &mut Budget) -> Result<bool, Fault> {
    let (a, b) = (a.items(budget)?, b.items(budget)?);
    for (a, b) in a.iter().zip(b.iter()) {
        if !equal_if_defined(a, b, budget)?.unwrap_or(true) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn same_entries(a: &Map, b: &Map, budget: &mut Budget) -> Result<bool, Fault> {
    for (key, value) in a.entries(budget)?.iter() {
        budget.count_steps(1)?;
        let same = match b.find(key) {
            Some(other) => equal_if_defined(value, &other, budget)?.unwrap_or(true),
            None => false,
        };
        if !same {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether two values are equal, or `None` if their equality is not defined. Undefined pairs do not make lists or maps
/// unequal.
pub(crate) fn equal_if_defined(
    a: &Value,
    b: &Value,
    budget: &mut Budget,
) -> Result<Option<bool>, Fault> {
    match equal(a, b, budget) {
        Ok(same) => Ok(Some(same)),
        Err(fault) if fault.is_fatal() => Err(fault),
        Err(_) => Ok(None),
    }
}

/// Whether a list has an element that equals `value`. Undefined comparisons count as unequal.
pub(crate) fn contains(items: &[Value], value: &Value, budget: &mut Budget) -> Result<bool, Fault> {
    for item in items {
        if equal_if_defined(value, item, budget)? == Some(true) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The order of two values. Returns an error for values without an order.
pub(crate) fn order(a: &Value, b: &Value) -> Result<Ordering, Fault> {
    match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => Ok(a.cmp(b)),
        (Value::String(a), Value::String(b)) => Ok(a.cmp(b)),
        (Value::Bytes(a), Value::Bytes(b)) => Ok(a.cmp(b)),
        (Value::Duration(a), Value::Duration(b)) => Ok(a.cmp(b)),
        (Value::Timestamp(a), Value::Timestamp(b)) => Ok(a.instant().cmp(&b.instant())),
        (
            Value::Int(_) | Value::Uint(_) | Value::Double(_),
            Value::Int(_) | Value::Uint(_) | Value::Double(_),
        ) => numbers(a, b).ok_or_else(|| Fault::new("NaN has no order")),
        _ => Err(Fault::new(format!(
            "{} and {} have no order",
            a.type_name(),
            b.type_name()
        ))),
    }
}

/// The order of two numbers; `None` for NaN and for other values.
fn numbers(a: &Value, b: &Value) -> Option<Ordering> {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => Some(a.cmp(b)),
        (Value::Uint(a), Value::Uint(b)) => Some(a.cmp(b)),
        (Value::Double(a), Value::Double(b)) => a.partial_cmp(b),
        (Value::Int(a), Value::Uint(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
        (Value::Uint(a), Value::Int(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
        // As in Kubernetes, an integer is converted to the nearest double.
        (Value::Double(a), Value::Int(b)) => {
            compare_double(*a, *b as f64, i64::MIN as f64, i64::MAX as f64)
        }
        (Value::Double(a), Value::Uint(b)) => compare_double(*a, *b as f64, 0.0, u64::MAX as f64),
        (Value::Int(_) | Value::Uint(_), Value::Double(_)) => numbers(b, a).map(Ordering::reverse),
        _ => None,
    }
}

fn compare_double(value: f64, other: f64, min: f64, max: f64) -> Option<Ordering> {
    if value < min {
        return Some(Ordering::Less);
    }
    if value > max {
        return Some(Ordering::Greater);
    }
    value.partial_cmp(&other)
}
