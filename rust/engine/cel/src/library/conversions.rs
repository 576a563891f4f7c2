//! Conversions between types.

use std::sync::Arc;

use super::{Signature, global};
use crate::budget::Budget;
use crate::fault::Fault;
use crate::number;
use crate::time::{self, Timestamp};
use crate::value::Value;

#[rustfmt::skip]
pub(super) const TABLE: &[Signature] = &[
    global("type", "type", "A", "type<A>", type_of),
    global("to_dyn", "dyn", "A", "dyn", identity),
    global("bool_to_bool", "bool", "bool", "bool", identity),
    global("string_to_bool", "bool", "string", "bool", to_bool),
    global("bytes_to_bytes", "bytes", "bytes", "bytes", identity),
    global("string_to_bytes", "bytes", "string", "bytes", to_bytes),
    global("double_to_double", "double", "double", "double", identity),
    global("int64_to_double", "double", "int", "double", to_double),
    global("string_to_double", "double", "string", "double", to_double),
    global("uint64_to_double", "double", "uint", "double", to_double),
    global("duration_to_duration", "duration", "duration", "duration", identity),
    global("string_to_duration", "duration", "string", "duration", to_duration),
    global("int64_to_int64", "int", "int", "int", identity),
    global("double_to_int64", "int", "double", "int", to_int),
    global("duration_to_int64", "int", "duration", "int", to_int),
    global("string_to_int64", "int", "string", "int", to_int),
    global("timestamp_to_int64", "int", "timestamp", "int", to_int),
    global("uint64_to_int64", "int", "uint", "int", to_int),
    global("string_to_string", "string", "string", "string", identity),
    global("bool_to_string", "string", "bool", "string", to_string),
    global("bytes_to_string", "string", "bytes", "string", to_string),
    global("double_to_string", "string", "double", "string", to_string),
    global("duration_to_string", "string", "duration", "string", to_string),
    global("int64_to_string", "string", "int", "string", to_string),
    global("timestamp_to_string", "string", "timestamp", "string", to_string),
    global("uint64_to_string", "string", "uint", "string", to_string),
    global("timestamp_to_timestamp", "timestamp", "timestamp", "timestamp", identity),
    global("int64_to_timestamp", "timestamp", "int", "timestamp", to_timestamp),
    global("string_to_timestamp", "timestamp", "string", "timestamp", to_timestamp),
    global("uint64_to_uint64", "uint", "uint", "uint", identity),
    global("double_to_uint64", "uint", "double", "uint", to_uint),
    global("int64_to_uint64", "uint", "int", "uint", to_uint),
    global("string_to_uint64", "uint", "string", "uint", to_uint),
];

/// Whether a call of the function with a constant is evaluated at compile time.
pub(crate) fn is_conversion(function: &str) -> bool {
    TABLE.iter().any(|signature| signature.function == function)
}

fn identity(args: &[Value], _: &mut Budget) -> Result<Value, Fault> {
    Ok(args[0].clone())
}

fn type_of(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    budget.charge_shared()?;
    Ok(Value::Type(Arc::from(args[0].type_name())))
}

fn invalid(text: &str, expected: &str) -> Fault {
    Fault::invalid(text, format_args!("is not {expected}"))
}

fn to_bool(args: &[Value], _: &mut Budget) -> Result<Value, Fault> {
    let text = args[0].as_str()?;
    match &**text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(Value::Bool(true)),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(Value::Bool(false)),
        _ => Err(invalid(text, "a boolean")),
    }
}

fn to_bytes(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    let text = args[0].as_str()?;
    budget.charge(text.len())?;
    budget.charge_shared()?;
    Ok(Value::Bytes(Arc::from(text.as_bytes())))
}

pub(super) fn to_double(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    Ok(Value::Double(match &args[0] {
        Value::Int(value) => *value as f64,
        Value::Uint(value) => *value as f64,
        Value::Double(value) => *value,
        Value::String(text) => {
            budget.charge(text.len().saturating_mul(2))?;
            number::parse_double(text).ok_or_else(|| invalid(text, "a number"))?
        }
        other => return Err(Fault::no_overload_for(other)),
    }))
}

fn to_duration(args: &[Value], _: &mut Budget) -> Result<Value, Fault> {
    let text = args[0].as_str()?;
    time::parse_duration(text)
        .map(Value::Duration)
        .ok_or_else(|| invalid(text, "a duration such as \"1h30m\""))
}

fn to_int(args: &[Value], _: &mut Budget) -> Result<Value, Fault> {
    let too_large = || Fault::new("the number does not fit an int");
    Ok(Value::Int(match &args[0] {
        Value::Uint(value) => i64::try_from(*value).map_err(|_| too_large())?,
        // The bounds are rejected, because as doubles they are equal to adjacent integers.
        Value::Double(value) if *value > i64::MIN as f64 && *value < i64::MAX as f64 => {
            *value as i64
        }
        Value::Double(_) => return Err(too_large()),
        Value::Duration(nanos) => *nanos,
        Value::Timestamp(time) => time.seconds,
        Value::String(text) => number::parse_int(text).ok_or_else(|| invalid(text, "an int"))?,
        other => return Err(Fault::no_overload_for(other)),
    }))
}

fn to_uint(args: &[Value], _: &mut Budget) -> Result<Value, Fault> {
    let no_fit = || Fault::new("the number does not fit a uint");
    Ok(Value::Uint(match &args[0] {
        Value::Int(value) => u64::try_from(*value).map_err(|_| no_fit())?,
        Value::Double(value) if *value >= 0.0 && *value < u64::MAX as f64 => *value as u64,
        Value::Double(_) => return Err(no_fit()),
        Value::String(text) => number::parse_uint(text).ok_or_else(|| invalid(text, "a uint"))?,
        other => return Err(Fault::no_overload_for(other)),
    }))
}

pub(super) fn to_string(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    match &args[0] {
        Value::String(text) => Ok(Value::String(Arc::clone(text))),
        other => {
            let mut text = String::new();
            write_text(other, &mut text, budget)?;
            budget.string(&text)
        }
    }
}

/// Appends the result of `string()`.
pub(super) fn write_text(
    value: &Value,
    out: &mut String,
    budget: &mut Budget,
) -> Result<(), Fault> {
    let short = match value {
        Value::String(text) => return budget.push(out, text),
        Value::Type(name) => return budget.push(out, name),
        Value::Bytes(bytes) => {
            let text = std::str::from_utf8(bytes);
            let text = text.map_err(|_| Fault::new("the bytes are not UTF-8"))?;
            return budget.push(out, text);
        }
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Uint(value) => value.to_string(),
        Value::Double(value) => number::shortest(*value),
        Value::Duration(nanos) => time::duration_text(*nanos),
        Value::Timestamp(time) => time.to_string(),
        other => return Err(Fault::no_overload_for(other)),
    };
    budget.push(out, &short)
}

fn to_timestamp(args: &[Value], _: &mut Budget) -> Result<Value, Fault> {
    match &args[0] {
        Value::Int(seconds) => Timestamp::from_unix(*seconds).map(Value::Timestamp),
        Value::String(text) => Timestamp::parse(text).map(Value::Timestamp),
        other => Err(Fault::no_overload_for(other)),
    }
}
