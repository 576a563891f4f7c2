//! Regular expressions in the syntax of RE2.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use ::regex::{Regex, RegexBuilder};

use super::{Signature, global, member};
use crate::fault::Fault;
use crate::value::Value;

mod re2;

#[rustfmt::skip]
pub(super) const TABLE: &[Signature] = &[
    global("matches", "matches", "string; string", "bool", matches),
    member("matches_string", "matches", "string; string", "bool", matches),
    member("string_find_string", "find", "string; string", "string", find),
    member("string_find_all_string", "findAll", "string; string", "list<string>", find_all),
    member("string_find_all_string_int", "findAll", "string; string; int", "list<string>", find_all),
];

/// The functions above whose constant pattern is compiled with the expression.
pub(crate) fn takes_pattern(function: &str) -> bool {
    matches!(function, "matches" | "find" | "findAll")
}

/// As deep as RE2 goes.
const MAX_NESTING: u32 = 1000;
/// Bytes of one compiled pattern.
const MAX_SIZE: usize = 32 << 20;
/// How many patterns are kept compiled.
const KEPT: usize = 256;

static COMPILED: LazyLock<RwLock<HashMap<Box<str>, Arc<Regex>>>> = LazyLock::new(RwLock::default);

/// Compiles a pattern, or finds it compiled.
pub(crate) fn compile(pattern: &str) -> Result<Arc<Regex>, Fault> {
    let known = COMPILED
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .get(pattern)
        .cloned();
    if let Some(regex) = known {
        return Ok(regex);
    }
    let refuse =
        |why: String| Fault::new(format!("{pattern:?} is not a regular expression: {why}"));
    let translated = re2::translate(pattern).map_err(refuse)?;
    let builder = RegexBuilder::new(&translated)
        .nest_limit(MAX_NESTING)
        .size_limit(MAX_SIZE)
        .build();
    let regex = builder.map_err(|error| refuse(error.to_string()))?;
    let regex = Arc::new(regex);
    let mut compiled = COMPILED.write().unwrap_or_else(PoisonError::into_inner);
    if compiled.len() >= KEPT {
        compiled.clear();
    }
    compiled.insert(Box::from(pattern), Arc::clone(&regex));
    Ok(regex)
}

fn matches(args: &[Value]) -> Result<Value, Fault> {
    let text = args[0].as_str()?;
    Ok(Value::Bool(compile(args[1].as_str()?)?.is_match(text)))
}

fn find(args: &[Value]) -> Result<Value, Fault> {
    let (text, regex) = (args[0].as_str()?, compile(args[1].as_str()?)?);
    Ok(Value::string(
        regex.find(text).map_or("", |found| found.as_str()),
    ))
}

fn find_all(args: &[Value]) -> Result<Value, Fault> {
    let (text, regex) = (args[0].as_str()?, compile(args[1].as_str()?)?);
    let limit = args.get(2).map_or(Ok(-1), Value::as_int)?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    Ok(Value::list(
        regex
            .find_iter(text)
            .take(limit)
            .map(|found| Value::string(found.as_str()))
            .collect(),
    ))
}
