//! Strings: search, cut, case, split and join. Indexes count characters.

use std::sync::Arc;

use super::{Signature, global, member};
use crate::fault::Fault;
use crate::room;
use crate::value::Value;

#[rustfmt::skip]
pub(super) const TABLE: &[Signature] = &[
    member(
        "contains_string",
        "contains",
        "string; string",
        "bool",
        |args| {
            Ok(Value::Bool(
                args[0].as_str()?.contains(&**args[1].as_str()?),
            ))
        },
    ),
    member(
        "ends_with_string",
        "endsWith",
        "string; string",
        "bool",
        |args| {
            Ok(Value::Bool(
                args[0].as_str()?.ends_with(&**args[1].as_str()?),
            ))
        },
    ),
    member(
        "starts_with_string",
        "startsWith",
        "string; string",
        "bool",
        |args| {
            Ok(Value::Bool(
                args[0].as_str()?.starts_with(&**args[1].as_str()?),
            ))
        },
    ),
    member("string_char_at_int", "charAt", "string; int", "string", char_at),
    member("string_index_of_string", "indexOf", "string; string", "int", index_of),
    member("string_index_of_string_int", "indexOf", "string; string; int", "int", index_of),
    member("string_last_index_of_string", "lastIndexOf", "string; string", "int", last_index_of),
    member("string_last_index_of_string_int", "lastIndexOf", "string; string; int", "int", last_index_of),
    member("string_lower_ascii", "lowerAscii", "string", "string", |args| Ok(Value::string(&args[0].as_str()?.to_ascii_lowercase()))),
    member("string_upper_ascii", "upperAscii", "string", "string", |args| Ok(Value::string(&args[0].as_str()?.to_ascii_uppercase()))),
    member("string_replace_string_string", "replace", "string; string; string", "string", replace),
    member("string_replace_string_string_int", "replace", "string; string; string; int", "string", replace),
    member("string_split_string", "split", "string; string", "list<string>", split),
    member("string_split_string_int", "split", "string; string; int", "list<string>", split),
    member("string_substring_int", "substring", "string; int", "string", substring),
    member("string_substring_int_int", "substring", "string; int; int", "string", substring),
    member("string_trim", "trim", "string", "string", trim),
    member("list_join", "join", "list<string>", "string", join),
    member("list_join_string", "join", "list<string>; string", "string", join),
    global("strings_quote", "strings.quote", "string", "string", quote),
];

fn out_of_range(index: i64) -> Fault {
    Fault::new(format!("index {index} is out of range"))
}

fn index(value: &Value, length: usize) -> Result<usize, Fault> {
    let index = value.as_int()?;
    usize::try_from(index)
        .ok()
        .filter(|at| *at <= length)
        .ok_or_else(|| out_of_range(index))
}

fn char_at(args: &[Value]) -> Result<Value, Fault> {
    let text = args[0].as_str()?;
    let at = index(&args[1], text.chars().count())?;
    Ok(Value::string(
        &text.chars().nth(at).map(String::from).unwrap_or_default(),
    ))
}

fn index_of(args: &[Value]) -> Result<Value, Fault> {
    let text: Vec<char> = args[0].as_str()?.chars().collect();
    let wanted: Vec<char> = args[1].as_str()?.chars().collect();
    let offset = args.get(2).map_or(Ok(0), Value::as_int)?;
    let from = usize::try_from(offset).map_err(|_| out_of_range(offset))?;
    if wanted.is_empty() {
        return Ok(Value::Int(from.min(text.len()) as i64));
    }
    let found = text
        .windows(wanted.len())
        .skip(from)
        .position(|window| window == wanted);
    Ok(Value::Int(found.map_or(-1, |at| (at + from) as i64)))
}

fn last_index_of(args: &[Value]) -> Result<Value, Fault> {
    let text: Vec<char> = args[0].as_str()?.chars().collect();
    let wanted: Vec<char> = args[1].as_str()?.chars().collect();
    let offset = match args.get(2) {
        Some(offset) => offset.as_int()?,
        None if wanted.is_empty() => text.len() as i64,
        None if args[0].as_str()?.len() < args[1].as_str()?.len() => return Ok(Value::Int(-1)),
        None => text.len() as i64 - 1,
    };
    let from = usize::try_from(offset).map_err(|_| out_of_range(offset))?;
    if wanted.is_empty() {
        return Ok(Value::Int(from.min(text.len()) as i64));
    }
    if from >= text.len() {
        return Ok(Value::Int(-1));
    }
    let found = text
        .windows(wanted.len())
        .take(from + 1)
        .rposition(|window| window == wanted);
    Ok(Value::Int(found.map_or(-1, |at| at as i64)))
}

fn replace(args: &[Value]) -> Result<Value, Fault> {
    let (text, old, new) = (args[0].as_str()?, args[1].as_str()?, args[2].as_str()?);
    let limit = args.get(3).map_or(Ok(-1), Value::as_int)?;
    let times = usize::try_from(limit)
        .unwrap_or(usize::MAX)
        .min(text.len() / old.len().max(1) + 1);
    room::for_bytes(text.len().saturating_add(times.saturating_mul(new.len())))?;
    Ok(Value::string(&match usize::try_from(limit) {
        Ok(limit) => text.replacen(&**old, new, limit),
        Err(_) => text.replace(&**old, new),
    }))
}

fn split(args: &[Value]) -> Result<Value, Fault> {
    let (text, separator) = (args[0].as_str()?, args[1].as_str()?);
    let limit = args.get(2).map_or(Ok(-1), Value::as_int)?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let parts: Vec<&str> = if limit == 0 {
        Vec::new()
    } else if separator.is_empty() {
        characters(text, limit)
    } else {
        text.splitn(limit, &**separator).collect()
    };
    Ok(Value::list(parts.into_iter().map(Value::string).collect()))
}

/// Single characters, the rest of the text as the last part once `limit` is reached.
fn characters(text: &str, limit: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if parts.len() + 1 == limit {
            parts.push(rest);
            return parts;
        }
        let (head, tail) = rest.split_at(first.len_utf8());
        parts.push(head);
        rest = tail;
    }
    parts
}

fn substring(args: &[Value]) -> Result<Value, Fault> {
    let text = args[0].as_str()?;
    let length = text.chars().count();
    if let Some(end) = args.get(2) {
        let (start, end) = (args[1].as_int()?, end.as_int()?);
        if start > end {
            return Err(Fault::new(format!(
                "a substring cannot start at {start} and end at {end}"
            )));
        }
    }
    let start = index(&args[1], length)?;
    let end = args.get(2).map_or(Ok(length), |end| index(end, length))?;
    Ok(Value::string(
        &text
            .chars()
            .skip(start)
            .take(end - start)
            .collect::<String>(),
    ))
}

fn trim(args: &[Value]) -> Result<Value, Fault> {
    Ok(Value::string(args[0].as_str()?.trim()))
}

fn join(args: &[Value]) -> Result<Value, Fault> {
    let items = args[0].as_list()?.items();
    let parts: Vec<&Arc<str>> = items.iter().map(Value::as_str).collect::<Result<_, _>>()?;
    let separator: &str = match args.get(1) {
        Some(separator) => separator.as_str()?,
        None => "",
    };
    let parts: Vec<&str> = parts.into_iter().map(|part| &**part).collect();
    room::for_bytes(parts.iter().map(|part| part.len() + separator.len()).sum())?;
    Ok(Value::string(&parts.join(separator)))
}

/// The text as a string literal.
fn quote(args: &[Value]) -> Result<Value, Fault> {
    let mut quoted = String::from("\"");
    for c in args[0].as_str()?.chars() {
        match c {
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            '\\' => quoted.push_str("\\\\"),
            '"' => quoted.push_str("\\\""),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    Ok(Value::string(&quoted))
}
