//! String functions: search, substring, case, split and join. Indexes count characters.

use super::{Signature, global, member};
use crate::budget::Budget;
use crate::fault::Fault;
use crate::value::Value;

#[rustfmt::skip]
pub(super) const TABLE: &[Signature] = &[
    member(
        "contains_string",
        "contains",
        "string; string",
        "bool",
        |args, _| {
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
        |args, _| {
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
        |args, _| {
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
    member("string_lower_ascii", "lowerAscii", "string", "string", lower),
    member("string_upper_ascii", "upperAscii", "string", "string", upper),
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

fn char_at(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    let text = args[0].as_str()?;
    let at = index(&args[1], text.chars().count())?;
    let mut buffer = [0; 4];
    match text.chars().nth(at) {
        Some(found) => budget.string(found.encode_utf8(&mut buffer)),
        None => budget.string(""),
    }
}

fn lower(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    let text = args[0].as_str()?;
    budget.charge(text.len())?;
    budget.string(&text.to_ascii_lowercase())
}

fn upper(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    let text = args[0].as_str()?;
    budget.charge(text.len())?;
    budget.string(&text.to_ascii_uppercase())
}

/// The byte offset of the character with this index; `None` beyond the end.
fn byte_of(text: &str, index: usize) -> Option<usize> {
    let ends = std::iter::once(text.len());
    text.char_indices().map(|(at, _)| at).chain(ends).nth(index)
}

fn index_of(args: &[Value], _: &mut Budget) -> Result<Value, Fault> {
    let (text, wanted) = (args[0].as_str()?, args[1].as_str()?);
    let offset = args.get(2).map_or(Ok(0), Value::as_int)?;
    let from = usize::try_from(offset).map_err(|_| out_of_range(offset))?;
    if wanted.is_empty() {
        return Ok(Value::Int(from.min(text.chars().count()) as i64));
    }
    let found = byte_of(text, from).and_then(|start| {
        let at = text[start..].find(&**wanted)?;
        Some(from + text[start..start + at].chars().count())
    });
    Ok(Value::Int(found.map_or(-1, |at| at as i64)))
}

fn last_index_of(args: &[Value], _: &mut Budget) -> Result<Value, Fault> {
    let (text, wanted) = (args[0].as_str()?, args[1].as_str()?);
    let length = text.chars().count();
    let offset = match args.get(2) {
        Some(offset) => offset.as_int()?,
        None if wanted.is_empty() => length as i64,
        None if text.len() < wanted.len() => return Ok(Value::Int(-1)),
        None => length as i64 - 1,
    };
    let from = usize::try_from(offset).map_err(|_| out_of_range(offset))?;
    if wanted.is_empty() {
        return Ok(Value::Int(from.min(length) as i64));
    }
    let Some(start) = byte_of(text, from).filter(|_| from < length) else {
        return Ok(Value::Int(-1));
    };
    // The last match that starts at `from` or earlier ends here or earlier.
    let mut end = start.saturating_add(wanted.len()).min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let found = text[..end].rfind(&**wanted);
    Ok(Value::Int(
        found.map_or(-1, |at| text[..at].chars().count() as i64),
    ))
}

fn replace(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    let (text, old, new) = (args[0].as_str()?, args[1].as_str()?, args[2].as_str()?);
    let limit = args.get(3).map_or(Ok(-1), Value::as_int)?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut replaced = String::new();
    let mut rest = 0;
    for (at, found) in text.match_indices(&**old).take(limit) {
        budget.push(&mut replaced, &text[rest..at])?;
        budget.push(&mut replaced, new)?;
        rest = at + found.len();
    }
    budget.push(&mut replaced, &text[rest..])?;
    budget.string(&replaced)
}

fn split(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    let (text, separator) = (args[0].as_str()?, args[1].as_str()?);
    let limit = args.get(2).map_or(Ok(-1), Value::as_int)?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut parts = Vec::new();
    if limit == 0 {
        return budget.list(parts);
    }
    if separator.is_empty() {
        for part in characters(text, limit) {
            budget.charge_element()?;
            parts.push(budget.string(part)?);
        }
    } else {
        for part in text.splitn(limit, &**separator) {
            budget.charge_element()?;
            parts.push(budget.string(part)?);
        }
    }
    budget.list(parts)
}

/// Single characters, the rest of the text as the last part once `limit` is reached.
fn characters(text: &str, limit: usize) -> impl Iterator<Item = &str> {
    let (mut rest, mut count) = (text, 0);
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        count += 1;
        let length = if count == limit {
            rest.len()
        } else {
            first.len_utf8()
        };
        let (head, tail) = rest.split_at(length);
        rest = tail;
        Some(head)
    })
}

fn substring(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
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
    let from = byte_of(text, start).unwrap_or(text.len());
    let to = byte_of(text, end).unwrap_or(text.len());
    budget.string(&text[from..to])
}

fn trim(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    budget.string(args[0].as_str()?.trim())
}

fn join(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    let items = args[0].as_list()?.items(budget)?;
    let separator: &str = match args.get(1) {
        Some(separator) => separator.as_str()?,
        None => "",
    };
    if let Some(other) = items.iter().find(|item| item.as_str().is_err()) {
        return Err(Fault::no_overload_for(other));
    }
    let bytes = items
        .iter()
        .map(|item| item.own_bytes().saturating_add(separator.len()))
        .fold(0, usize::saturating_add);
    let mut joined = budget.text(bytes)?;
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            budget.push(&mut joined, separator)?;
        }
        budget.push(&mut joined, item.as_str()?)?;
    }
    budget.string(&joined)
}

/// The text as a string literal.
fn quote(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    let text = args[0].as_str()?;
    let mut quoted = budget.text(text.len() + 2)?;
    let mut buffer = [0; 4];
    quoted.push('"');
    for c in text.chars() {
        match c {
            '\u{7}' => budget.push(&mut quoted, "\\a")?,
            '\u{8}' => budget.push(&mut quoted, "\\b")?,
            '\u{c}' => budget.push(&mut quoted, "\\f")?,
            '\n' => budget.push(&mut quoted, "\\n")?,
            '\r' => budget.push(&mut quoted, "\\r")?,
            '\t' => budget.push(&mut quoted, "\\t")?,
            '\u{b}' => budget.push(&mut quoted, "\\v")?,
            '\\' => budget.push(&mut quoted, "\\\\")?,
            '"' => budget.push(&mut quoted, "\\\"")?,
            other => budget.push(&mut quoted, other.encode_utf8(&mut buffer))?,
        }
    }
    budget.push(&mut quoted, "\"")?;
    budget.string(&quoted)
}
