//! `string.format`: templates with clauses such as `%s` and `%.2f`, written as in American English.

use std::fmt::Write;

use super::{Signature, member};
use crate::fault::Fault;
use crate::number;
use crate::room;
use crate::types::Type;
use crate::value::Value;

pub(super) const TABLE: &[Signature] = &[member(
    "string_format",
    "format",
    "string; list<dyn>",
    "string",
    format,
)];

const DEFAULT_PRECISION: usize = 6;
/// Digits after the point; no double has more.
const MOST_PRECISION: usize = 1_100;

/// A piece of a template.
pub(crate) enum Piece<'t> {
    Text(&'t str),
    Clause(Clause),
}

/// What follows a `%`.
#[derive(Clone, Copy)]
pub(crate) struct Clause {
    verb: char,
    precision: Option<usize>,
}

/// Reads a template.
pub(crate) fn pieces(template: &str) -> Result<Vec<Piece<'_>>, String> {
    let mut pieces = Vec::new();
    let mut rest = template;
    while let Some(at) = rest.find('%') {
        pieces.push(Piece::Text(&rest[..at]));
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            pieces.push(Piece::Text("%"));
            rest = after;
            continue;
        }
        let mut precision = None;
        if let Some(after) = rest.strip_prefix('.') {
            let end = after
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(after.len());
            precision = Some(
                after[..end]
                    .parse()
                    .map_err(|_| "a precision must be a number".to_owned())?,
            );
            rest = &after[end..];
        }
        let verb = rest
            .chars()
            .next()
            .ok_or_else(|| "the template ends within a clause".to_owned())?;
        if !"sdfebxXo".contains(verb) {
            return Err(format!("unknown clause %{verb}"));
        }
        pieces.push(Piece::Clause(Clause { verb, precision }));
        rest = &rest[verb.len_utf8()..];
    }
    pieces.push(Piece::Text(rest));
    Ok(pieces)
}

// === impl Clause ===

impl Clause {
    /// Whether a value of this type can be written so.
    pub(crate) fn accepts(self, t: &Type) -> bool {
        if t.is_dyn() {
            return true;
        }
        match self.verb {
            's' => !matches!(t, Type::Object(_) | Type::Opaque(..)),
            'd' | 'o' => matches!(t, Type::Int | Type::Uint),
            'f' | 'e' => matches!(t, Type::Double | Type::String),
            'b' => matches!(t, Type::Int | Type::Uint | Type::Bool),
            _ => matches!(t, Type::Int | Type::Uint | Type::String | Type::Bytes),
        }
    }

    /// Whether the elements of a list or map are written as well.
    pub(crate) fn goes_deep(self) -> bool {
        self.verb == 's'
    }

    pub(crate) fn verb(self) -> char {
        self.verb
    }

    fn write(self, value: &Value) -> Result<String, Fault> {
        let refuse = || {
            Fault::new(format!(
                "%{} cannot write a value of type {}",
                self.verb,
                value.type_name()
            ))
        };
        if self
            .precision
            .is_some_and(|precision| precision > MOST_PRECISION)
        {
            return Err(Fault::TooExpensive);
        }
        Ok(match (self.verb, value) {
            ('s', value) => text(value)?,
            ('d', Value::Int(value)) => value.to_string(),
            ('d', Value::Uint(value)) => value.to_string(),
            ('f', value) => fixed(
                double(value).ok_or_else(refuse)?,
                self.precision.unwrap_or(DEFAULT_PRECISION),
            ),
            ('e', value) => scientific(
                double(value).ok_or_else(refuse)?,
                self.precision.unwrap_or(DEFAULT_PRECISION),
            ),
            ('b', Value::Bool(value)) => u8::from(*value).to_string(),
            ('b', Value::Uint(value)) => format!("{value:b}"),
            ('b', Value::Int(value)) => format!("{}{:b}", minus(*value), value.unsigned_abs()),
            ('o', Value::Uint(value)) => format!("{value:o}"),
            ('o', Value::Int(value)) => format!("{}{:o}", minus(*value), value.unsigned_abs()),
            ('x', Value::Uint(value)) => format!("{value:x}"),
            ('x', Value::Int(value)) => format!("{}{:x}", minus(*value), value.unsigned_abs()),
            ('X', Value::Uint(value)) => format!("{value:X}"),
            ('X', Value::Int(value)) => format!("{}{:X}", minus(*value), value.unsigned_abs()),
            ('x' | 'X', Value::String(text)) => hexadecimal(text.as_bytes(), self.verb == 'X'),
            ('x' | 'X', Value::Bytes(bytes)) => hexadecimal(bytes, self.verb == 'X'),
            _ => return Err(refuse()),
        })
    }
}

fn format(args: &[Value]) -> Result<Value, Fault> {
    let template = args[0].as_str()?;
    let values = args[1].as_list()?.items();
    let mut values = values.iter();
    let mut written = String::new();
    for piece in pieces(template).map_err(Fault::new)? {
        match piece {
            Piece::Text(text) => written.push_str(text),
            Piece::Clause(clause) => {
                let value = values
                    .next()
                    .ok_or_else(|| Fault::new("format() has fewer values than clauses"))?;
                written.push_str(&clause.write(value)?);
                room::for_bytes(written.len())?;
            }
        }
    }
    Ok(Value::string(&written))
}

fn minus(value: i64) -> &'static str {
    if value < 0 { "-" } else { "" }
}

fn hexadecimal(bytes: &[u8], upper: bool) -> String {
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    if upper { text.to_uppercase() } else { text }
}

fn double(value: &Value) -> Option<f64> {
    match value {
        Value::Double(value) => Some(*value),
        Value::String(text) if matches!(&**text, "NaN" | "Infinity" | "-Infinity") => {
            number::parse_double(text)
        }
        _ => None,
    }
}

/// NaN and infinity have no digits.
fn special(value: f64) -> Option<String> {
    if value.is_nan() {
        return Some("NaN".to_owned());
    }
    value.is_infinite().then(|| {
        if value > 0.0 {
            "∞".to_owned()
        } else {
            "-∞".to_owned()
        }
    })
}

/// `1,234.50`.
fn fixed(value: f64, precision: usize) -> String {
    if let Some(text) = special(value) {
        return text;
    }
    let plain = format!("{value:.precision$}");
    let (sign, digits) = plain
        .strip_prefix('-')
        .map_or(("", plain.as_str()), |digits| ("-", digits));
    let (whole, fraction) = digits
        .split_once('.')
        .map_or((digits, None), |(whole, rest)| (whole, Some(rest)));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    match fraction {
        Some(fraction) => format!("{sign}{grouped}.{fraction}"),
        None => format!("{sign}{grouped}"),
    }
}

/// `1.23×10⁰³`.
fn scientific(value: f64, precision: usize) -> String {
    if let Some(text) = special(value) {
        return text;
    }
    let plain = format!("{value:.precision$e}");
    let (mantissa, exponent) = plain.split_once('e').unwrap_or((&plain, "0"));
    let mut text = format!("{mantissa}×10");
    let (sign, digits) = exponent
        .strip_prefix('-')
        .map_or(("", exponent), |digits| ("⁻", digits));
    text.push_str(sign);
    let raised = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    for digit in format!("{digits:0>2}")
        .chars()
        .filter_map(|c| c.to_digit(10))
    {
        text.push(raised[digit as usize]);
    }
    text
}

/// `%s`.
fn text(value: &Value) -> Result<String, Fault> {
    match value {
        Value::Null => Ok("null".to_owned()),
        Value::List(_) | Value::Map(_) => nested(value),
        other => match super::conversions::to_string(std::slice::from_ref(other))? {
            Value::String(text) => Ok(text.to_string()),
            _ => Err(Fault::no_overload_for(value)),
        },
    }
}

/// A value within a list or map: written as a literal.
fn nested(value: &Value) -> Result<String, Fault> {
    Ok(match value {
        Value::String(text) => quoted(text),
        Value::Bytes(_) => format!("b{}", quoted(&text(value)?)),
        Value::Double(number) if number.is_finite() => format!("{number:.DEFAULT_PRECISION$}"),
        Value::Double(number) => quoted(&number::shortest(*number)),
        Value::Timestamp(_) => format!("timestamp({})", quoted(&text(value)?)),
        Value::Duration(_) => format!("duration({})", quoted(&text(value)?)),
        Value::List(list) => {
            let items: Vec<String> = list.items().iter().map(nested).collect::<Result<_, _>>()?;
            format!("[{}]", items.join(", "))
        }
        Value::Map(map) => {
            let mut pairs = Vec::new();
            for (key, value) in map.entries().iter() {
                if !matches!(
                    key,
                    Value::String(_) | Value::Bool(_) | Value::Int(_) | Value::Uint(_)
                ) {
                    return Err(Fault::no_overload_for(key));
                }
                pairs.push((nested(key)?, nested(value)?));
            }
            pairs.sort();
            let pairs: Vec<String> = pairs
                .into_iter()
                .map(|(key, value)| format!("{key}:{value}"))
                .collect();
            format!("{{{}}}", pairs.join(", "))
        }
        other => text(other)?,
    })
}

/// The text as Go writes a string literal.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
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
            c if c.is_ascii_control() => quoted.extend(format!("\\x{:02x}", c as u32).chars()),
            c if c.is_control() || (c.is_whitespace() && c != ' ') => {
                let _ = write!(quoted, "\\u{:04x}", c as u32);
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
