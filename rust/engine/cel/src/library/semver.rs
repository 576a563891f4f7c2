//! Semantic versions.

use std::cmp::Ordering;
use std::sync::Arc;

use ::semver::Version;

use super::{Signature, global, member};
use crate::budget::Budget;
use crate::fault::Fault;
use crate::value::Value;

#[rustfmt::skip]
pub(super) const TABLE: &[Signature] = &[
    global("string_to_semver", "semver", "string", "semver", |args, budget| parse(charged(&args[0], budget)?)),
    global("string_bool_to_semver", "semver", "string; bool", "semver", parse_with_option),
    global("is_semver_string", "isSemver", "string", "bool", |args, budget| Ok(Value::Bool(parse(charged(&args[0], budget)?).is_ok()))),
    global(
        "is_semver_string_bool",
        "isSemver",
        "string; bool",
        "bool",
        |args, budget| {
            charged(&args[0], budget)?;
            Ok(Value::Bool(parse_with_option(args, budget).is_ok()))
        },
    ),
    member("semver_is_greater_than", "isGreaterThan", "semver; semver", "bool", |args, _| Ok(Value::Bool(order(args)?.is_gt()))),
    member("semver_is_less_than", "isLessThan", "semver; semver", "bool", |args, _| Ok(Value::Bool(order(args)?.is_lt()))),
    member("semver_compare_to", "compareTo", "semver; semver", "int", |args, _| Ok(Value::Int(order(args)? as i64))),
    member("semver_major", "major", "semver", "int", |args, _| Ok(Value::Int(version(&args[0])?.major as i64))),
    member("semver_minor", "minor", "semver", "int", |args, _| Ok(Value::Int(version(&args[0])?.minor as i64))),
    member("semver_patch", "patch", "semver", "int", |args, _| Ok(Value::Int(version(&args[0])?.patch as i64))),
];

/// Parses a version strictly by semver 2.0.0.
pub(crate) fn parse(text: &str) -> Result<Value, Fault> {
    let invalid =
        |why: String| Fault::invalid(text, format_args!("is not a semantic version: {why}"));
    let version = Version::parse(text).map_err(|error| invalid(error.to_string()))?;
    // Kubernetes represents numeric identifiers in 64 bits.
    let numeric = |part: &&str| part.bytes().all(|b| b.is_ascii_digit());
    match version
        .pre
        .split('.')
        .filter(numeric)
        .find(|part| !part.is_empty() && part.parse::<u64>().is_err())
    {
        Some(_) => Err(invalid("a number does not fit 64 bits".to_owned())),
        None => Ok(Value::Semver(Arc::new(version))),
    }
}

/// Parses a version. If the second argument is `true`, accepts a leading `v`, missing numbers and leading zeros.
fn parse_with_option(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    let text = charged(&args[0], budget)?;
    match &args[1] {
        Value::Bool(true) => parse(&normalize(text)?),
        Value::Bool(false) => parse(text),
        other => Err(Fault::no_overload_for(other)),
    }
}

/// Charges the memory of parsing a text, and returns the text.
fn charged<'v>(text: &'v Value, budget: &mut Budget) -> Result<&'v str, Fault> {
    let text = text.as_str()?;
    budget.charge(text.len().saturating_mul(5))?;
    budget.charge_shared()?;
    Ok(text)
}

fn normalize(text: &str) -> Result<String, Fault> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let mut parts: Vec<String> = text.splitn(3, '.').map(without_leading_zeros).collect();
    let is_short = parts.len() < 3;
    if is_short && parts.last().is_some_and(|part| part.contains(['+', '-'])) {
        return Err(Fault::invalid(
            text,
            "is too short for a pre-release or build part",
        ));
    }
    parts.resize_with(3, || "0".to_owned());
    Ok(parts.join("."))
}

fn without_leading_zeros(part: &str) -> String {
    if part.len() < 2 {
        return part.to_owned();
    }
    let stripped = part.trim_start_matches('0');
    if stripped.starts_with(|c: char| c.is_ascii_digit()) {
        stripped.to_owned()
    } else {
        format!("0{stripped}")
    }
}

fn version(value: &Value) -> Result<&Version, Fault> {
    match value {
        Value::Semver(version) => Ok(version),
        other => Err(Fault::no_overload_for(other)),
    }
}

fn order(args: &[Value]) -> Result<Ordering, Fault> {
    Ok(version(&args[0])?.cmp_precedence(version(&args[1])?))
}
