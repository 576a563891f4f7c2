//! Kubernetes quantities: exact decimal numbers with a suffix, as apimachinery's `resource.Quantity` computes them.
//!
//! An amount is an int64 with a power of ten as long as that suffices, and a big decimal from then on. The
//! difference shows (`as_i64` of a big decimal is none even where it would fit), so it is kept.

mod amount;
mod format;
mod parse;
mod serde_impl;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::fmt;

use amount::Amount;
pub use format::QuantityFormat;
pub use parse::QuantityError;

/// An amount of something, ordered by value: `1Gi`, `1024Mi` and `1073741824` are equal.
#[derive(Debug, Clone)]
pub struct Quantity {
    amount: Amount,
    format: QuantityFormat,
    text: Option<Text>,
}

/// What was read, until the value changes.
#[derive(Debug, Clone)]
struct Text {
    given: String,
    /// Kubernetes writes this amount exactly as it was given.
    canonical: bool,
}

impl Quantity {
    /// An amount of whole units.
    pub fn new(value: i64, format: QuantityFormat) -> Self {
        Self {
            amount: Amount::Small { value, scale: 0 },
            format,
            text: None,
        }
    }

    /// An amount of thousandths.
    pub fn from_milli(value: i64, format: QuantityFormat) -> Self {
        Self {
            amount: Amount::Small { value, scale: -3 },
            format,
            text: None,
        }
    }

    pub fn format(&self) -> QuantityFormat {
        self.format
    }

    pub fn is_zero(&self) -> bool {
        self.amount.sign() == Ordering::Equal
    }

    /// Compared with zero: `Less`, `Equal` or `Greater`.
    pub fn sign(&self) -> Ordering {
        self.amount.sign()
    }

    /// The value where it is a whole number held as an int64: apimachinery's `AsInt64`.
    pub fn as_i64(&self) -> Option<i64> {
        match self.amount {
            Amount::Small { value, scale } if scale >= 0 => amount::scale_up(value, scale),
            _ => None,
        }
    }

    /// The value in whole units, rounded away from zero. Meaningless where no int64 holds it, and for
    /// negative big decimals, as in Go.
    pub fn value(&self) -> i64 {
        self.amount.scaled(0)
    }

    /// The value in thousandths, rounded away from zero. Meaningless where no int64 holds it, as in Go.
    pub fn milli_value(&self) -> i64 {
        self.amount.scaled(-3)
    }

    /// apimachinery's `AsApproximateFloat64`, with the same loss of precision.
    pub fn as_approximate_float(&self) -> f64 {
        self.amount.approximate()
    }

    /// Adds `other`. Zero takes the other's format.
    pub fn add(&mut self, other: &Self) {
        self.text = None;
        if self.is_zero() {
            self.format = other.format;
        }
        self.amount = self.amount.add(&other.amount);
    }

    /// Subtracts `other`. Zero takes the other's format.
    pub fn sub(&mut self, other: &Self) {
        self.text = None;
        if self.is_zero() {
            self.format = other.format;
        }
        self.amount = self.amount.add(&other.amount.negated());
    }

    /// Whether both are the same number held and written in the same way: what Go's `==` tells of two quantities.
    /// Two big decimals never are.
    pub fn is_identical(&self, other: &Self) -> bool {
        let kept = |quantity: &Self| match &quantity.text {
            Some(text) if text.canonical => text.given.clone(),
            _ => String::new(),
        };
        self.format == other.format
            && self.amount.is_identical(&other.amount)
            && kept(self) == kept(other)
    }

    /// Bytes that it takes beside its own: those of its text and of a number that an int64 does not hold.
    pub fn heap_bytes(&self) -> usize {
        self.text.as_ref().map_or(0, |text| text.given.len()) + self.amount.heap_bytes()
    }

    /// Bytes of the number that adding `other` makes, at most.
    pub fn sum_bytes(&self, other: &Self) -> usize {
        self.amount.sum_bytes(&other.amount)
    }

    /// What was read, or the canonical form where the value was computed.
    pub fn as_given(&self) -> String {
        match &self.text {
            Some(text) => text.given.clone(),
            None => self.to_string(),
        }
    }
}

impl Default for Quantity {
    fn default() -> Self {
        Self::new(0, QuantityFormat::DecimalSi)
    }
}

/// The canonical form.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            Some(text) if text.canonical => f.write_str(&text.given),
            _ => f.write_str(&format::canonical(&self.amount, self.format)),
        }
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.amount.cmp(&other.amount)
    }
}
