//! Parses a quantity: sign, digits, suffix.

use num_bigint::BigInt;

use super::amount::{Amount, NANO};
use super::format::{BINARY, DECIMAL};
use super::{Quantity, QuantityFormat, Text};

/// The largest exponent of ten of a big decimal. Kubernetes would compute for minutes with a larger one.
const MAX_EXPONENT: i32 = 100_000;

/// The maximum number of digits. An API object is too small for many longer numbers.
const MAX_DIGITS: usize = 100_000;

/// Numbers of up to this many digits always fit into an int64.
const SMALL_DIGITS: i32 = 18;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum QuantityError {
    #[error(
        "{} is not a quantity: write a number and a suffix, such as \"40Gi\", \"1.5\" or \"500m\"",
        excerpt(.0)
    )]
    Format(String),
    #[error(
        "{} is not a quantity: the suffix must be one of n u m k M G T P E, Ki Mi Gi Ti Pi Ei, or e and an exponent",
        excerpt(.0)
    )]
    Suffix(String),
    #[error("{} is not a quantity: it has too many digits, or its exponent is too large", excerpt(.0))]
    Exponent(String),
}

/// A text in quotes, truncated after `MAX_CHARS` characters.
fn excerpt(text: &str) -> String {
    const MAX_CHARS: usize = 200;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{:?}... ({} bytes)", &text[..end], text.len()),
        None => format!("{text:?}"),
    }
}

impl Quantity {
    /// Parses a quantity. The amount is rounded away from zero to nano; a binary one is capped at 2^63-1.
    ///
    /// # Errors
    ///
    /// The text is not a quantity, or it has too many digits or too large an exponent.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let parts = Parts::split(text).ok_or_else(|| QuantityError::Format(text.to_owned()))?;
        let suffix =
            Suffix::parse(parts.suffix).ok_or_else(|| QuantityError::Suffix(text.to_owned()))?;
        let given = |canonical| {
            Some(Text {
                given: text.to_owned(),
                canonical: canonical || text == "0",
            })
        };
        if let Some((amount, canonical)) = small(&parts, suffix) {
            return Ok(Self {
                amount,
                format: suffix.format(),
                text: given(canonical),
            });
        }
        // apimachinery needs a digit only for numbers that an int64 may not hold: it accepts `G` as 0, and refuses `Pi`.
        if !parts.has_digit {
            return Err(QuantityError::Format(text.to_owned()));
        }
        let amount = big(&parts, suffix).ok_or_else(|| QuantityError::Exponent(text.to_owned()))?;
        let one = Amount::Small { value: 1, scale: 0 };
        let fraction = amount.sign().is_gt() && amount.cmp(&one).is_lt();
        let format = match suffix.format() {
            QuantityFormat::BinarySi if fraction => QuantityFormat::DecimalSi,
            format => format,
        };
        Ok(Self {
            amount,
            format,
            text: given(false),
        })
    }
}

#[derive(Debug)]
struct Parts<'a> {
    negative: bool,
    has_digit: bool,
    /// Without leading zeros; `0` if no other digit remains.
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
}

impl<'a> Parts<'a> {
    fn split(text: &'a str) -> Option<Self> {
        if text.is_empty() {
            return None;
        }
        let negative = text.starts_with('-');
        let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
        let (whole, rest) = split_digits(unsigned.trim_start_matches('0'));
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => split_digits(rest),
            None => ("", rest),
        };
        let exponent = suffix.trim_start_matches(|letter| "eEinumkKMGTP".contains(letter));
        let digits = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        digits
            .bytes()
            .all(|digit| digit.is_ascii_digit())
            .then_some(Self {
                negative,
                has_digit: text[..text.len() - suffix.len()]
                    .bytes()
                    .any(|byte| byte.is_ascii_digit()),
                whole: if whole.is_empty() { "0" } else { whole },
                fraction,
                suffix,
            })
    }
}

fn split_digits(text: &str) -> (&str, &str) {
    let end = text
        .bytes()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

#[derive(Debug, Clone, Copy)]
enum Suffix {
    Binary(i32),
    Decimal(i32),
    Exponent(i32),
}

impl Suffix {
    fn parse(text: &str) -> Option<Self> {
        let find = |table: &[(&str, i32)]| {
            table
                .iter()
                .find(|(suffix, _)| *suffix == text)
                .map(|found| found.1)
        };
        if let Some(exponent) = find(&DECIMAL) {
            return Some(Self::Decimal(exponent));
        }
        if let Some(exponent) = find(&BINARY) {
            return Some(Self::Binary(exponent));
        }
        let exponent: i64 = text.strip_prefix(['e', 'E'])?.parse().ok()?;
        // apimachinery keeps the low 32 bits.
        Some(Self::Exponent(exponent as i32))
    }

    fn format(self) -> QuantityFormat {
        match self {
            Self::Binary(_) => QuantityFormat::BinarySi,
            Self::Decimal(_) => QuantityFormat::DecimalSi,
            Self::Exponent(_) => QuantityFormat::DecimalExponent,
        }
    }
}

/// The amount as an int64 if it always fits by its number of digits, and whether the text is canonical.
fn small(parts: &Parts<'_>, suffix: Suffix) -> Option<(Amount, bool)> {
    let digits = i32::try_from(parts.whole.len() + parts.fraction.len()).ok()?;
    let (factor, scale) = match suffix {
        Suffix::Decimal(exponent) | Suffix::Exponent(exponent) if digits <= SMALL_DIGITS => {
            (1, exponent)
        }
        // apimachinery's estimate of the factor's decimal digits, because it selects the representation.
        Suffix::Binary(exponent)
            if parts.fraction.is_empty() && digits <= 14 - exponent * 3 / 10 =>
        {
            (1_i64 << exponent, 0)
        }
        _ => return None,
    };
    let scale = scale.wrapping_sub(i32::try_from(parts.fraction.len()).ok()?);
    if scale < NANO {
        return None;
    }
    let shifted = format!("{}{}", parts.whole, parts.fraction);
    let unsigned: i64 = shifted.parse().ok()?;
    let product = unsigned.checked_mul(factor)?;
    let canonical = match suffix {
        Suffix::Binary(_) => unsigned & 7 != 0,
        _ => scale % 3 == 0 && !shifted.ends_with("000") && !shifted.starts_with('0'),
    };
    let value = if parts.negative { -product } else { product };
    Some((Amount::Small { value, scale }, canonical))
}

/// The amount as a big decimal; `None` if it has too many digits.
fn big(parts: &Parts<'_>, suffix: Suffix) -> Option<Amount> {
    let shifted = format!("{}{}", parts.whole, parts.fraction);
    if shifted.len() > MAX_DIGITS {
        return None;
    }
    let digits: BigInt = shifted.parse().ok()?;
    let places = i32::try_from(parts.fraction.len()).ok()?;
    let zero = digits == BigInt::from(0);
    let (value, scale) = match suffix {
        Suffix::Binary(exponent) => (digits << exponent, -places),
        Suffix::Decimal(exponent) | Suffix::Exponent(exponent) => {
            (digits, exponent.wrapping_sub(places))
        }
    };
    let amount = if zero {
        Amount::Big { value, scale: 0 }
    } else if i64::from(scale) + i64::try_from(shifted.len()).ok()? < i64::from(NANO) {
        // Below the rounding unit: the result needs no power of ten.
        Amount::Big {
            value: BigInt::from(1),
            scale: NANO,
        }
    } else if scale > MAX_EXPONENT {
        without_zeros(&shifted, scale)?
    } else {
        let (value, _) = Amount::Big { value, scale }.rounded(NANO);
        Amount::Big { value, scale: NANO }
    };
    let capped = match suffix {
        Suffix::Binary(_) => cap(amount),
        _ => amount,
    };
    Some(if parts.negative {
        capped.negated()
    } else {
        capped
    })
}

/// The amount as an int64 after removal of trailing zeros. The canonical form of an int64 has up to two.
fn without_zeros(digits: &str, scale: i32) -> Option<Amount> {
    let significant = digits.trim_end_matches('0');
    if significant.len() > SMALL_DIGITS as usize {
        return None;
    }
    let zeros = i32::try_from(digits.len() - significant.len()).ok()?;
    Some(Amount::Small {
        value: significant.parse().ok()?,
        scale: scale.checked_add(zeros)?,
    })
}

fn cap(amount: Amount) -> Amount {
    let highest = Amount::Big {
        value: BigInt::from(i64::MAX),
        scale: 0,
    };
    if amount.cmp(&highest).is_gt() {
        highest
    } else {
        amount
    }
}
