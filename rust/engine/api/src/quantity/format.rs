//! The canonical form: the largest suffix with a whole number.

use super::amount::{Amount, scale_down, scale_up};

/// The family of suffixes of a quantity: apimachinery's `Format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuantityFormat {
    /// `12Mi`
    BinarySi,
    /// `12M`
    DecimalSi,
    /// `12e6`
    DecimalExponent,
}

pub(super) const DECIMAL: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];

pub(super) const BINARY: [(&str, i32); 6] = [
    ("Ki", 10),
    ("Mi", 20),
    ("Gi", 30),
    ("Ti", 40),
    ("Pi", 50),
    ("Ei", 60),
];

pub(super) fn canonical(amount: &Amount, format: QuantityFormat) -> String {
    if amount.sign().is_eq() {
        return "0".to_owned();
    }
    match format {
        QuantityFormat::BinarySi => binary(amount).unwrap_or_else(|| decimal(amount, si)),
        QuantityFormat::DecimalSi => decimal(amount, si),
        QuantityFormat::DecimalExponent => decimal(amount, exponential),
    }
}

/// `None` for fractions and for values between -1024 and 1024, which have decimal suffixes.
fn binary(amount: &Amount) -> Option<String> {
    let bound = |value| Amount::Small { value, scale: 0 };
    if amount.cmp(&bound(-1024)).is_gt() && amount.cmp(&bound(1024)).is_lt() {
        return None;
    }
    if let Amount::Small { value, scale } = amount {
        let whole = if *scale < 0 {
            let (whole, exact) = scale_down(*value, scale.unsigned_abs());
            exact.then_some(whole)
        } else {
            scale_up(*value, *scale)
        };
        if let Some(mut whole) = whole {
            let mut exponent = 0;
            while whole % 1024 == 0 {
                whole /= 1024;
                exponent += 10;
            }
            return Some(format!("{whole}{}", suffix(&BINARY, exponent)));
        }
    }
    let (whole, exact) = amount.rounded(0);
    if !exact {
        return None;
    }
    // 1024 is 2^10.
    let times = whole.trailing_zeros().unwrap_or(0) / 10;
    let exponent = i32::try_from(times.saturating_mul(10)).unwrap_or(i32::MAX);
    Some(format!(
        "{}{}",
        whole >> (times * 10),
        suffix(&BINARY, exponent)
    ))
}

fn decimal(amount: &Amount, suffix: fn(i32) -> String) -> String {
    let mut digits = amount.to_big().to_string();
    let significant = digits.trim_end_matches('0').len();
    let times = i32::try_from(digits.len() - significant).unwrap_or(i32::MAX);
    digits.truncate(significant);
    let mut exponent = amount.scale().wrapping_add(times);
    while exponent % 3 != 0 {
        digits.push('0');
        exponent = exponent.wrapping_sub(1);
    }
    format!("{digits}{}", suffix(exponent))
}

fn si(exponent: i32) -> String {
    suffix(&DECIMAL, exponent).to_owned()
}

fn exponential(exponent: i32) -> String {
    if exponent == 0 {
        String::new()
    } else {
        format!("e{exponent}")
    }
}

/// An empty suffix beyond the largest one, as in apimachinery.
fn suffix(table: &[(&'static str, i32)], exponent: i32) -> &'static str {
    table
        .iter()
        .find(|(_, known)| *known == exponent)
        .map_or("", |(suffix, _)| suffix)
}
