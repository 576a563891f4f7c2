//! Two quantities, one for each line.

use std::cmp::Ordering;
use std::time::Duration;

use dra_api::{Quantity, QuantityFormat};

use crate::Target;

pub const TARGET: Target = Target {
    name: "quantity",
    check,
    heap_bytes: 16 << 20,
    cpu: Duration::from_secs(2),
};

/// Maximum size of a sum, in bytes; exponents make numbers long.
const MAX_SUM_BYTES: usize = 4 << 10;

fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (left, right) = text.split_once('\n').unwrap_or((text, "1"));
    let (Some(left), Some(right)) = (read(left), read(right)) else {
        return;
    };
    assert_eq!(
        left.cmp(&right),
        right.cmp(&left).reverse(),
        "the order of {left:?} and {right:?} depends on which comes first"
    );
    if left.sum_bytes(&right) > MAX_SUM_BYTES {
        return;
    }
    let mut difference = left.clone();
    difference.sub(&right);
    assert_eq!(
        difference.sign(),
        left.cmp(&right),
        "the order of {left:?} and {right:?} is not the sign of their difference"
    );
    difference.add(&right);
    assert_eq!(
        difference, left,
        "subtracting and adding {right:?} changes the value"
    );
}

/// Parses one quantity and checks its properties.
fn read(text: &str) -> Option<Quantity> {
    let quantity = Quantity::parse(text).ok()?;
    assert_eq!(quantity.as_given(), text);
    if quantity.heap_bytes() > MAX_SUM_BYTES {
        return None;
    }
    let canonical = quantity.to_string();
    if loses_its_suffix(&quantity) {
        return Some(quantity);
    }
    let again = Quantity::parse(&canonical)
        .unwrap_or_else(|error| panic!("the canonical form of {text:?} is refused: {error}"));
    assert_eq!(
        again, quantity,
        "{text:?} and its canonical form {canonical:?} are two numbers"
    );
    assert_eq!(
        again.to_string(),
        canonical,
        "the canonical form of {text:?} has another canonical form"
    );
    let json = serde_json::to_string(&quantity).expect("a quantity is JSON");
    // Numbers of more than 308 digits are invalid in objects.
    if let Ok(decoded) = serde_json::from_str::<Quantity>(&json) {
        assert_eq!(decoded, quantity, "{json} is read as another number");
    } else {
        let bound = |text| Quantity::parse(text).expect("a quantity");
        let is_large = quantity > bound("1e307") || quantity < bound("-1e307");
        assert!(is_large || quantity.is_zero(), "{json} is refused");
    }
    if let Some(expected) = whole_units(text) {
        assert_eq!(
            quantity.value(),
            expected,
            "the whole units of {text:?}, rounded away from zero"
        );
    }
    let sign = quantity.sign();
    assert_eq!(quantity.is_zero(), sign == Ordering::Equal);
    assert_eq!(quantity.cmp(&Quantity::default()), sign);
    Some(quantity)
}

/// Kubernetes has no suffix for 1000E, and formats it as 1 (apimachinery v0.37; tests/api/golden/quantities.jsonl).
fn loses_its_suffix(quantity: &Quantity) -> bool {
    let bound = |text| Quantity::parse(text).expect("a quantity");
    quantity.format() != QuantityFormat::DecimalExponent
        && !(bound("-1000E") < *quantity && *quantity < bound("1000E"))
}

/// The value by an independent parser with 128 bits. `None` if that is insufficient.
fn whole_units(text: &str) -> Option<i64> {
    const DECIMAL: &[(&str, i32)] = &[
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
    const BINARY: &[(&str, u32)] = &[
        ("Ki", 10),
        ("Mi", 20),
        ("Gi", 30),
        ("Ti", 40),
        ("Pi", 50),
        ("Ei", 60),
    ];
    let number = text.trim_start_matches(['-', '+']);
    let end = number
        .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
        .unwrap_or(number.len());
    let (digits, suffix) = number.split_at(end);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    // Kubernetes keeps the low bits of large negative numbers, and rounds negative fractions up (apimachinery, scaledValue).
    if whole.len() + fraction.len() > 18 || text.starts_with('-') {
        return None;
    }
    let mut numerator: i128 = format!("0{whole}{fraction}").parse().ok()?;
    let mut denominator = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
    let scale = DECIMAL.iter().find(|(name, _)| *name == suffix);
    match (scale, BINARY.iter().find(|(name, _)| *name == suffix)) {
        (Some((_, scale)), _) if *scale < 0 => denominator *= 10_i128.pow(scale.unsigned_abs()),
        (Some((_, scale)), _) => {
            numerator = numerator.checked_mul(10_i128.pow(scale.unsigned_abs()))?
        }
        (None, Some((_, bits))) => numerator = numerator.checked_mul(1 << bits)?,
        (None, None) => return None,
    }
    let units = numerator / denominator + i128::from(numerator % denominator != 0);
    // Binary amounts above the largest int64 are capped; other values out of range are undefined.
    i64::try_from(units).ok()
}
