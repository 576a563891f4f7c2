//! Operators with full evaluation of their operands: arithmetic, comparison, membership and size.

use std::cmp::Ordering;
use std::sync::Arc;

use super::{Signature, global, member};
use crate::budget::Budget;
use crate::compare;
use crate::fault::Fault;
use crate::value::Value;

#[rustfmt::skip]
pub(super) const TABLE: &[Signature] = &[
    global("conditional", "_?_:_", "bool; A; A", "A", unreachable_operator),
    global("logical_and", "_&&_", "bool; bool", "bool", unreachable_operator),
    global("logical_or", "_||_", "bool; bool", "bool", unreachable_operator),
    global("logical_not", "!_", "bool", "bool", not),
    global("not_strictly_false", "@not_strictly_false", "bool", "bool", unreachable_operator),
    global("equals", "_==_", "A; A", "bool", unreachable_operator),
    global("not_equals", "_!=_", "A; A", "bool", unreachable_operator),
    global("add_bytes", "_+_", "bytes; bytes", "bytes", add),
    global("add_double", "_+_", "double; double", "double", add),
    global("add_duration_duration", "_+_", "duration; duration", "duration", add),
    global("add_duration_timestamp", "_+_", "duration; timestamp", "timestamp", add),
    global("add_timestamp_duration", "_+_", "timestamp; duration", "timestamp", add),
    global("add_int64", "_+_", "int; int", "int", add),
    global("add_list", "_+_", "list<A>; list<A>", "list<A>", add),
    global("add_string", "_+_", "string; string", "string", add),
    global("add_uint64", "_+_", "uint; uint", "uint", add),
    global("divide_double", "_/_", "double; double", "double", divide),
    global("divide_int64", "_/_", "int; int", "int", divide),
    global("divide_uint64", "_/_", "uint; uint", "uint", divide),
    global("modulo_int64", "_%_", "int; int", "int", modulo),
    global("modulo_uint64", "_%_", "uint; uint", "uint", modulo),
    global("multiply_double", "_*_", "double; double", "double", multiply),
    global("multiply_int64", "_*_", "int; int", "int", multiply),
    global("multiply_uint64", "_*_", "uint; uint", "uint", multiply),
    global("negate_double", "-_", "double", "double", negate),
    global("negate_int64", "-_", "int", "int", negate),
    global("subtract_double", "_-_", "double; double", "double", subtract),
    global("subtract_duration_duration", "_-_", "duration; duration", "duration", subtract),
    global("subtract_int64", "_-_", "int; int", "int", subtract),
    global("subtract_timestamp_duration", "_-_", "timestamp; duration", "timestamp", subtract),
    global("subtract_timestamp_timestamp", "_-_", "timestamp; timestamp", "duration", subtract),
    global("subtract_uint64", "_-_", "uint; uint", "uint", subtract),
    global("less_bool", "_<_", "bool; bool", "bool", less),
    global("less_int64", "_<_", "int; int", "bool", less),
    global("less_int64_double", "_<_", "int; double", "bool", less),
    global("less_int64_uint64", "_<_", "int; uint", "bool", less),
    global("less_uint64", "_<_", "uint; uint", "bool", less),
    global("less_uint64_double", "_<_", "uint; double", "bool", less),
    global("less_uint64_int64", "_<_", "uint; int", "bool", less),
    global("less_double", "_<_", "double; double", "bool", less),
    global("less_double_int64", "_<_", "double; int", "bool", less),
    global("less_double_uint64", "_<_", "double; uint", "bool", less),
    global("less_string", "_<_", "string; string", "bool", less),
    global("less_bytes", "_<_", "bytes; bytes", "bool", less),
    global("less_timestamp", "_<_", "timestamp; timestamp", "bool", less),
    global("less_duration", "_<_", "duration; duration", "bool", less),
    global("less_equals_bool", "_<=_", "bool; bool", "bool", less_or_equal),
    global("less_equals_int64", "_<=_", "int; int", "bool", less_or_equal),
    global("less_equals_int64_double", "_<=_", "int; double", "bool", less_or_equal),
    global("less_equals_int64_uint64", "_<=_", "int; uint", "bool", less_or_equal),
    global("less_equals_uint64", "_<=_", "uint; uint", "bool", less_or_equal),
    global("less_equals_uint64_double", "_<=_", "uint; double", "bool", less_or_equal),
    global("less_equals_uint64_int64", "_<=_", "uint; int", "bool", less_or_equal),
    global("less_equals_double", "_<=_", "double; double", "bool", less_or_equal),
    global("less_equals_double_int64", "_<=_", "double; int", "bool", less_or_equal),
    global("less_equals_double_uint64", "_<=_", "double; uint", "bool", less_or_equal),
    global("less_equals_string", "_<=_", "string; string", "bool", less_or_equal),
    global("less_equals_bytes", "_<=_", "bytes; bytes", "bool", less_or_equal),
    global("less_equals_timestamp", "_<=_", "timestamp; timestamp", "bool", less_or_equal),
    global("less_equals_duration", "_<=_", "duration; duration", "bool", less_or_equal),
    global("greater_bool", "_>_", "bool; bool", "bool", greater),
    global("greater_int64", "_>_", "int; int", "bool", greater),
    global("greater_int64_double", "_>_", "int; double", "bool", greater),
    global("greater_int64_uint64", "_>_", "int; uint", "bool", greater),
    global("greater_uint64", "_>_", "uint; uint", "bool", greater),
    global("greater_uint64_double", "_>_", "uint; double", "bool", greater),
    global("greater_uint64_int64", "_>_", "uint; int", "bool", greater),
    global("greater_double", "_>_", "double; double", "bool", greater),
    global("greater_double_int64", "_>_", "double; int", "bool", greater),
    global("greater_double_uint64", "_>_", "double; uint", "bool", greater),
    global("greater_string", "_>_", "string; string", "bool", greater),
    global("greater_bytes", "_>_", "bytes; bytes", "bool", greater),
    global("greater_timestamp", "_>_", "timestamp; timestamp", "bool", greater),
    global("greater_duration", "_>_", "duration; duration", "bool", greater),
    global("greater_equals_bool", "_>=_", "bool; bool", "bool", greater_or_equal),
    global("greater_equals_int64", "_>=_", "int; int", "bool", greater_or_equal),
    global("greater_equals_int64_double", "_>=_", "int; double", "bool", greater_or_equal),
    global("greater_equals_int64_uint64", "_>=_", "int; uint", "bool", greater_or_equal),
    global("greater_equals_uint64", "_>=_", "uint; uint", "bool", greater_or_equal),
    global("greater_equals_uint64_double", "_>=_", "uint; double", "bool", greater_or_equal),
    global("greater_equals_uint64_int64", "_>=_", "uint; int", "bool", greater_or_equal),
    global("greater_equals_double", "_>=_", "double; double", "bool", greater_or_equal),
    global("greater_equals_double_int64", "_>=_", "double; int", "bool", greater_or_equal),
    global("greater_equals_double_uint64", "_>=_", "double; uint", "bool", greater_or_equal),
    global("greater_equals_string", "_>=_", "string; string", "bool", greater_or_equal),
    global("greater_equals_bytes", "_>=_", "bytes; bytes", "bool", greater_or_equal),
    global("greater_equals_timestamp", "_>=_", "timestamp; timestamp", "bool", greater_or_equal),
    global("greater_equals_duration", "_>=_", "duration; duration", "bool", greater_or_equal),
    global("index_list", "_[_]", "list<A>; int", "A", unreachable_operator),
    global("index_map", "_[_]", "map<A,B>; A", "B", unreachable_operator),
    global("optional_list_index_int", "_[_]", "optional<list<V>>; int", "optional<V>", unreachable_operator),
    global("optional_map_index_value", "_[_]", "optional<map<K,V>>; K", "optional<V>", unreachable_operator),
    global("list_optindex_optional_int", "_[?_]", "list<V>; int", "optional<V>", unreachable_operator),
    global("optional_list_optindex_optional_int", "_[?_]", "optional<list<V>>; int", "optional<V>", unreachable_operator),
    global("map_optindex_optional_value", "_[?_]", "map<K,V>; K", "optional<V>", unreachable_operator),
    global("optional_map_optindex_optional_value", "_[?_]", "optional<map<K,V>>; K", "optional<V>", unreachable_operator),
    global("in_list", "@in", "A; list<A>", "bool", is_in),
    global("in_map", "@in", "A; map<A,B>", "bool", is_in),
    global("size_bytes", "size", "bytes", "int", size),
    member("bytes_size", "size", "bytes", "int", size),
    global("size_list", "size", "list<A>", "int", size),
    member("list_size", "size", "list<A>", "int", size),
    global("size_map", "size", "map<A,B>", "int", size),
    member("map_size", "size", "map<A,B>", "int", size),
    global("size_string", "size", "string", "int", size),
    member("string_size", "size", "string", "int", size),
    global("add_key_value", "cel.@mapInsert", "map<K,V>; K; V", "map<K,V>", insert_key),
    global("add_map", "cel.@mapInsert", "map<K,V>; map<K,V>", "map<K,V>", insert_all),
];

/// Placeholder in the table for an operator that [`crate::eval`] implements.
fn unreachable_operator(_: &[Value], _: &mut Budget) -> Result<Value, Fault> {
    Err(Fault::new("the operator is evaluated elsewhere"))
}

fn undefined(operator: &str, a: &Value, b: &Value) -> Fault {
    Fault::new(format!(
        "{} {operator} {} is not defined",
        a.type_name(),
        b.type_name()
    ))
}

fn overflow() -> Fault {
    Fault::new("integer overflow")
}

fn not(args: &[Value], _: &mut Budget) -> Result<Value, Fault> {
    match &args[0] {
        Value::Bool(value) => Ok(Value::Bool(!value)),
        other => Err(Fault::no_overload_for(other)),
    }
}

pub(super) fn add(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    Ok(match (&args[0], &args[1]) {
        (Value::Int(a), Value::Int(b)) => Value::Int(a.checked_add(*b).ok_or_else(overflow)?),
        (Value::Uint(a), Value::Uint(b)) => Value::Uint(a.checked_add(*b).ok_or_else(overflow)?),
        (Value::Double(a), Value::Double(b)) => Value::Double(a + b),
        (Value::String(a), Value::String(b)) => {
            // The concatenation, and its reference-counted copy.
            budget.charge(2 * (a.len() + b.len()))?;
            budget.charge_shared()?;
            Value::String(Arc::from([&**a, &**b].concat()))
        }
        (Value::Bytes(a), Value::Bytes(b)) => {
            budget.charge(2 * (a.len() + b.len()))?;
            budget.charge_shared()?;
            Value::Bytes(Arc::from([&a[..], &b[..]].concat()))
        }
        (Value::List(a), Value::List(b)) => Value::List(a.concat(b, budget)?),
        (Value::Duration(a), Value::Duration(b)) => {
            Value::Duration(a.checked_add(*b).ok_or_else(overflow)?)
        }
        (Value::Timestamp(time), Value::Duration(nanos))
        | (Value::Duration(nanos), Value::Timestamp(time)) => {
            Value::Timestamp(time.plus(i128::from(*nanos))?)
        }
        (a, b) => return Err(undefined("+", a, b)),
    })
}

fn subtract(args: &[Value], _: &mut Budget) -> Result<Value, Fault> {
    Ok(match (&args[0], &args[1]) {
        (Value::Int(a), Value::Int(b)) => Value::Int(a.checked_sub(*b).ok_or_else(overflow)?),
        (Value::Uint(a), Value::Uint(b)) => Value::Uint(a.checked_sub(*b).ok_or_else(overflow)?),
        (Value::Double(a), Value::Double(b)) => Value::Double(a - b),
        (Value::Duration(a), Value::Duration(b)) => {
            Value::Duration(a.checked_sub(*b).ok_or_else(overflow)?)
        }
        (Value::Timestamp(time), Value::Duration(nanos)) => {
            Value::Timestamp(time.plus(i128::from(nanos.checked_neg().ok_or_else(overflow)?))?)
        }
        (Value::Timestamp(a), Value::Timestamp(b)) => Value::Duration(a.since(b)?),
        (a, b) => return Err(undefined("-", a, b)),
    })
}

fn multiply(args: &[Value], _: &mut Budget) -> Result<Value, Fault> {
    Ok(match (&args[0], &args[1]) {
        (Value::Int(a), Value::Int(b)) => Value::Int(a.checked_mul(*b).ok_or_else(overflow)?),
        (Value::Uint(a), Value::Uint(b)) => Value::Uint(a.checked_mul(*b).ok_or_else(overflow)?),
        (Value::Double(a), Value::Double(b)) => Value::Double(a * b),
        (a, b) => return Err(undefined("*", a, b)),
    })
}

fn divide(args: &[Value], _: &mut Budget) -> Result<Value, Fault> {
    Ok(match (&args[0], &args[1]) {
        (Value::Int(_), Value::Int(0)) | (Value::Uint(_), Value::Uint(0)) => {
            return Err(Fault::new("division by zero"));
        }
        (Value::Int(a), Value::Int(b)) => Value::Int(a.checked_div(*b).ok_or_else(overflow)?),
        (Value::Uint(a), Value::Uint(b)) => Value::Uint(a / b),
        (Value::Double(a), Value::Double(b)) => Value::Double(a / b),
        (a, b) => return Err(undefined("/", a, b)),
    })
}

fn modulo(args: &[Value], _: &mut Budget) -> Result<Value, Fault> {
    Ok(match (&args[0], &args[1]) {
        (Value::Int(_), Value::Int(0)) | (Value::Uint(_), Value::Uint(0)) => {
            return Err(Fault::new("modulus by zero"));
        }
        (Value::Int(a), Value::Int(b)) => Value::Int(a.checked_rem(*b).ok_or_else(overflow)?),
        (Value::Uint(a), Value::Uint(b)) => Value::Uint(a % b),
        (a, b) => return Err(undefined("%", a, b)),
    })
}

fn negate(args: &[Value], _: &mut Budget) -> Result<Value, Fault> {
    Ok(match &args[0] {
        Value::Int(value) => Value::Int(value.checked_neg().ok_or_else(overflow)?),
        Value::Double(value) => Value::Double(-value),
        Value::Duration(nanos) => Value::Duration(nanos.checked_neg().ok_or_else(overflow)?),
        other => return Err(Fault::no_overload_for(other)),
    })
}

fn less(args: &[Value], _: &mut Budget) -> Result<Value, Fault> {
    compare::order(&args[0], &args[1]).map(|order| Value::Bool(order == Ordering::Less))
}

fn less_or_equal(args: &[Value], _: &mut Budget) -> Result<Value, Fault> {
    compare::order(&args[0], &args[1]).map(|order| Value::Bool(order != Ordering::Greater))
}

fn greater(args: &[Value], _: &mut Budget) -> Result<Value, Fault> {
    compare::order(&args[0], &args[1]).map(|order| Value::Bool(order == Ordering::Greater))
}

fn greater_or_equal(args: &[Value], _: &mut Budget) -> Result<Value, Fault> {
    compare::order(&args[0], &args[1]).map(|order| Value::Bool(order != Ordering::Less))
}

fn is_in(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    match &args[1] {
        Value::List(list) => {
            let items = list.items(budget)?;
            compare::contains(&items, &args[0], budget).map(Value::Bool)
        }
        Value::Map(map) => Ok(Value::Bool(map.contains(&args[0]))),
        other => Err(Fault::new(format!(
            "in needs a list or a map on its right, not a value of type {}",
            other.type_name()
        ))),
    }
}

fn size(args: &[Value], _: &mut Budget) -> Result<Value, Fault> {
    match &args[0] {
        value @ (Value::String(_)
        | Value::Bytes(_)
        | Value::List(_)
        | Value::Map(_)
        | Value::Ip(_)
        | Value::Cidr(..)) => Ok(Value::Int(value.size() as i64)),
        other => Err(Fault::no_overload_for(other)),
    }
}

/// Adds an entry to the map that a macro accumulates.
fn insert_key(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    let Value::Map(map) = &args[0] else {
        return Err(Fault::no_overload_for(&args[0]));
    };
    if map.contains(&args[1]) {
        return Err(Fault::new("duplicate key in the map"));
    }
    map.insert(&args[1], &args[2], budget).map(Value::Map)
}

fn insert_all(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    let Value::Map(more) = &args[1] else {
        return Err(Fault::no_overload_for(&args[1]));
    };
    let mut map = args[0].clone();
    for (key, value) in more.entries(budget)?.iter() {
        map = insert_key(&[map, key.clone(), value.clone()], budget)?;
    }
    Ok(map)
}
