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

/// Removes underscores, which are valid between digits only.
fn without_underscores(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let is_digit = |at: Option<usize>| {
        at.and_then(|at| bytes.get(at))
            .is_some_and(|b| b.is_ascii_hexdigit())
    };
    let between = |at: usize| is_digit(at.checked_sub(1)) && is_digit(Some(at + 1));
    let valid = bytes
        .iter()
        .enumerate()
        .all(|(at, b)| *b != b'_' || between(at));
    valid.then(|| text.replace('_', ""))
}

/// `1.8p3`: the exponent is required, as in C.
fn parse_hexadecimal(text: &str) -> Option<f64> {
    let (mantissa, exponent) = text.split_once('p')?;
    let exponent: i32 = exponent.parse().ok()?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut value = 0.0_f64;
    for digit in whole.chars().chain(fraction.chars()) {
        value = value * 16.0 + f64::from(digit.to_digit(16)?);
    }
    let value = value * 2.0_f64.powi(exponent - 4 * fraction.len() as i32);
    value.is_finite().then_some(value)
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
