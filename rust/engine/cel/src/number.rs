//! Parsing and formatting of numbers as in Kubernetes.

/// Parses a decimal int with an optional sign.
pub(crate) fn parse_int(text: &str) -> Option<i64> {
    text.parse().ok()
}

/// Parses a decimal uint without a sign.
pub(crate) fn parse_uint(text: &str) -> Option<u64> {
    if text.starts_with('+') {
        return None;
    }
    text.parse().ok()
}

/// Parses a double: decimal or hexadecimal, `inf`, `infinity` and `nan` in any case. Values out of range are errors.
pub(crate) fn parse_double(text: &str) -> Option<f64> {
    let plain;
    let text = if text.contains('_') {
        plain = without_underscores(text)?;
        &plain
    } else {
        text
    };
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let sign = if text.starts_with('-') { -1.0 } else { 1.0 };
    match unsigned.to_ascii_lowercase().as_str() {
        "inf" | "infinity" => return Some(sign * f64::INFINITY),
        "nan" => return (unsigned.len() == text.len()).then_some(f64::NAN),
        lower if lower.starts_with("0x") => {
            return parse_hexadecimal(&lower[2..]).map(|value| sign * value);
        }
        _ => {}
    }
    if !unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    text.parse().ok().filter(|value: &f64| value.is_finite())
}

/// Removes underscores, which are valid between digits, and between `0x` and a digit.
fn without_underscores(text: &str) -> Option<String> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let hexadecimal = unsigned.strip_prefix("0x").or(unsigned.strip_prefix("0X"));
    let is_digit = |b: u8| match hexadecimal {
        Some(_) => b.is_ascii_hexdigit(),
        None => b.is_ascii_digit(),
    };
    // The prefix counts as a digit.
    let mut after_digit = hexadecimal.is_some();
    let mut after_underscore = false;
    for b in hexadecimal.unwrap_or(unsigned).bytes() {
        if (b == b'_' && !after_digit) || (after_underscore && !is_digit(b)) {
            return None;
        }
        (after_digit, after_underscore) = (is_digit(b), b == b'_');
    }
    (!after_underscore).then(|| text.replace('_', ""))
}

/// `1.8p3`, without its sign and in lower case: the exponent is required, as in C.
fn parse_hexadecimal(text: &str) -> Option<f64> {
    const MAX_EXPONENT: i64 = 1 << 32;
    let (digits, exponent) = text.split_once('p')?;
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let power = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    let empty = whole.is_empty() && fraction.is_empty();
    if empty || power.is_empty() || !power.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // A number of more digits is too large in any case.
    let power = power.parse().unwrap_or(MAX_EXPONENT).min(MAX_EXPONENT);
    let mut scale = if exponent.starts_with('-') {
        -power
    } else {
        power
    };
    scale -= 4 * fraction.len() as i64;
    let (mut value, mut rest) = (0_u64, false);
    for digit in whole.chars().chain(fraction.chars()) {
        let digit = u64::from(digit.to_digit(16)?);
        if value < 1 << 56 {
            value = value << 4 | digit;
        } else {
            rest |= digit != 0;
            scale += 4;
        }
    }
    scaled(value, rest, scale)
}

/// The double nearest to `value × 2^scale`, even in doubt; `rest` if the exact value is a little larger. `None` if it is
/// too large.
fn scaled(value: u64, rest: bool, scale: i64) -> Option<f64> {
    const FRACTION_BITS: i64 = 52;
    const LOWEST: i64 = -1074;
    if value == 0 {
        return Some(0.0);
    }
    let leading = scale + i64::from(value.ilog2());
    // Of the last bit of the result.
    let unit = (leading - FRACTION_BITS).max(LOWEST);
    let shift = unit - scale;
    let kept = if shift <= 0 {
        value << -shift
    } else if shift > 64 {
        0
    } else {
        let wide = u128::from(value);
        let (kept, lost) = (wide >> shift, wide & ((1 << shift) - 1));
        let half = 1_u128 << (shift - 1);
        let up = lost > half || (lost == half && (rest || kept & 1 == 1));
        kept as u64 + u64::from(up)
    };
    // A carry into the next power of two increases the exponent.
    let exponent = u64::try_from(unit - LOWEST).ok()?;
    let bits = (exponent << FRACTION_BITS).checked_add(kept)?;
    Some(f64::from_bits(bits)).filter(|value| exponent < 2046 && value.is_finite())
}

/// The shortest text that parses to the same double, with an exponent below 1e-4 and from 1e6 on.
pub(crate) fn shortest(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 {
            "+Inf".into()
        } else {
            "-Inf".into()
        };
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) || value == 0.0 {
        return format!("{value}");
    }
    with_exponent(mantissa, exponent)
}

/// `1.5e+06`: at least two digits of exponent, always with its sign.
pub(crate) fn with_exponent(mantissa: &str, exponent: i32) -> String {
    format!(
        "{mantissa}e{}{:02}",
        if exponent < 0 { '-' } else { '+' },
        exponent.abs()
    )
}
