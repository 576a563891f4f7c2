//! `string.format`: templates with clauses such as `%s` and `%.2f`, written as in American English.

use super::{Signature, member};
use crate::budget::Budget;
use crate::fault::Fault;
use crate::number;
use crate::types::Type;
use crate::value::{List, Map, Value};

pub(super) const TABLE: &[Signature] = &[member(
    "string_format",
    "format",
    "string; list<dyn>",
    "string",
    format,
)];

const DEFAULT_PRECISION: usize = 6;
/// Maximum number of digits after the decimal point; no double has more.
const MAX_PRECISION: usize = 1_100;

/// A part of a template.
pub(crate) enum Piece<'t> {
    Text(&'t str),
    Clause(Clause),
}

/// A formatting clause, which starts with `%`.
#[derive(Clone, Copy)]
pub(crate) struct Clause {
    verb: char,
    precision: Option<usize>,
}

/// Parses a template.
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
    /// Whether the clause can format a value of this type.
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

    /// Whether the clause also formats the elements of a list or map.
    pub(crate) fn formats_elements(self) -> bool {
        self.verb == 's'
    }

    pub(crate) fn verb(self) -> char {
        self.verb
    }

    /// Appends the formatted value.
    fn write(self, value: &Value, out: &mut String, budget: &mut Budget) -> Result<(), Fault> {
        let refuse = || {
            Fault::new(format!(
                "%{} cannot format a value of type {}",
                self.verb,
                value.type_name()
            ))
        };
        if self
            .precision
            .is_some_and(|precision| precision > MAX_PRECISION)
        {
            return Err(Fault::TooExpensive);
        }
        let short = match (self.verb, value) {
            ('s', value) => return text(value, out, budget),
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
            ('x' | 'X', Value::String(text)) => {
                return hexadecimal(text.as_bytes(), self.verb == 'X', out, budget);
            }
            ('x' | 'X', Value::Bytes(bytes)) => {
                return hexadecimal(bytes, self.verb == 'X', out, budget);
            }
            _ => return Err(refuse()),
        };
        budget.push(out, &short)
    }
}

fn format(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    let template = args[0].as_str()?;
    let values = args[1].as_list()?.items(budget)?;
    let mut values = values.iter();
    let mut written = String::new();
    let clauses = template.bytes().filter(|byte| *byte == b'%').count();
    budget.charge_values(8 * (clauses + 1))?;
    for piece in pieces(template).map_err(Fault::new)? {
        match piece {
            Piece::Text(text) => budget.push(&mut written, text)?,
            Piece::Clause(clause) => {
                let value = values
                    .next()
                    .ok_or_else(|| Fault::new("format() has fewer values than clauses"))?;
                clause.write(value, &mut written, budget)?;
            }
        }
    }
    budget.string(&written)
}

fn minus(value: i64) -> &'static str {
    if value < 0 { "-" } else { "" }
}

fn hexadecimal(
    bytes: &[u8],
    upper: bool,
    out: &mut String,
    budget: &mut Budget,
) -> Result<(), Fault> {
    for byte in bytes {
        let digits = if upper {
            format!("{byte:02X}")
        } else {
            format!("{byte:02x}")
        };
        budget.push(out, &digits)?;
    }
    Ok(())
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

/// The text of NaN and infinity; `None` for finite values.
fn non_finite(value: f64) -> Option<String> {
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
    if let Some(text) = non_finite(value) {
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
    if let Some(text) = non_finite(value) {
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
fn text(value: &Value, out: &mut String, budget: &mut Budget) -> Result<(), Fault> {
    match value {
        Value::Null => budget.push(out, "null"),
        Value::List(_) | Value::Map(_) => nested(value, out, budget),
        other => super::conversions::write_text(other, out, budget),
    }
}

/// Appends a value of a list or map as a literal.
fn nested(value: &Value, out: &mut String, budget: &mut Budget) -> Result<(), Fault> {
    budget.count_steps(1)?;
    match value {
        Value::String(text) => quoted(text, out, budget),
        Value::Bytes(_) => {
            budget.push(out, "b")?;
            quoted_text(value, out, budget)
        }
        Value::Double(number) if number.is_finite() => {
            budget.push(out, &format!("{number:.DEFAULT_PRECISION$}"))
        }
        Value::Double(number) => quoted(&number::shortest(*number), out, budget),
        Value::Timestamp(_) => {
            budget.push(out, "timestamp(")?;
            quoted_text(value, out, budget)?;
            budget.push(out, ")")
        }
        Value::Duration(_) => {
            budget.push(out, "duration(")?;
            quoted_text(value, out, budget)?;
            budget.push(out, ")")
        }
        Value::List(list) => budget.within(|budget| nested_list(list, out, budget)),
        Value::Map(map) => budget.within(|budget| nested_map(map, out, budget)),
        other => text(other, out, budget),
    }
}

fn nested_list(list: &List, out: &mut String, budget: &mut Budget) -> Result<(), Fault> {
    budget.push(out, "[")?;
    for (at, item) in list.items(budget)?.iter().enumerate() {
        if at > 0 {
            budget.push(out, ", ")?;
        }
        nested(item, out, budget)?;
    }
    budget.push(out, "]")
}

fn nested_map(map: &Map, out: &mut String, budget: &mut Budget) -> Result<(), Fault> {
    let mut pairs = Vec::new();
    for (key, value) in map.entries(budget)?.iter() {
        if !matches!(
            key,
            Value::String(_) | Value::Bool(_) | Value::Int(_) | Value::Uint(_)
        ) {
            return Err(Fault::no_overload_for(key));
        }
        let mut pair = (String::new(), String::new());
        budget.charge_entry()?;
        nested(key, &mut pair.0, budget)?;
        nested(value, &mut pair.1, budget)?;
        pairs.push(pair);
    }
    pairs.sort();
    budget.push(out, "{")?;
    for (at, (key, value)) in pairs.iter().enumerate() {
        if at > 0 {
            budget.push(out, ", ")?;
        }
        budget.push(out, key)?;
        budget.push(out, ":")?;
        budget.push(out, value)?;
    }
    budget.push(out, "}")
}

fn quoted_text(value: &Value, out: &mut String, budget: &mut Budget) -> Result<(), Fault> {
    let mut plain = String::new();
    text(value, &mut plain, budget)?;
    quoted(&plain, out, budget)
}

/// Appends the text as a string literal of Go.
fn quoted(text: &str, out: &mut String, budget: &mut Budget) -> Result<(), Fault> {
    let mut buffer = [0; 4];
    budget.push(out, "\"")?;
    for c in text.chars() {
        match c {
            '\u{7}' => budget.push(out, "\\a")?,
            '\u{8}' => budget.push(out, "\\b")?,
            '\u{c}' => budget.push(out, "\\f")?,
            '\n' => budget.push(out, "\\n")?,
            '\r' => budget.push(out, "\\r")?,
            '\t' => budget.push(out, "\\t")?,
            '\u{b}' => budget.push(out, "\\v")?,
            '\\' => budget.push(out, "\\\\")?,
            '"' => budget.push(out, "\\\"")?,
            c if c.is_ascii_control() => budget.push(out, &format!("\\x{:02x}", c as u32))?,
            c if c.is_control() || (c.is_whitespace() && c != ' ') => {
                budget.push(out, &format!("\\u{:04x}", c as u32))?;
            }
            c => budget.push(out, c.encode_utf8(&mut buffer))?,
        }
    }
    budget.push(out, "\"")
}
