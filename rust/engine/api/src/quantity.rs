//! Kubernetes quantities: exact decimal numbers with a suffix, as apimachinery's `resource.Quantity` computes them.
//!
//! An amount is an int64 with a power of ten while that suffices, and a big decimal otherwise. The representation is
//! visible (`as_i64` of a big decimal is `None` even if the value fits), so it is the same as in apimachinery.

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

/// An amount with a suffix. Order is by value: `1Gi`, `1024Mi` and `1073741824` are equal.
#[derive(Debug, Clone)]
pub struct Quantity {
    amount: Amount,
    format: QuantityFormat,
    text: Option<Text>,
}

/// The text that was parsed. Dropped when the value changes.
#[derive(Debug, Clone)]
struct Text {
    given: String,
    /// Whether Kubernetes encodes the amount with exactly this text.
    canonical: bool,
}

impl Quantity {
    /// A quantity of `value` whole units.
    pub fn new(value: i64, format: QuantityFormat) -> Self {
        Self {
            amount: Amount::Small { value, scale: 0 },
            format,
            text: None,
        }
    }

    /// A quantity of `value` thousandths.
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

    /// The comparison with zero: `Less`, `Equal` or `Greater`.
    pub fn sign(&self) -> Ordering {
        self.amount.sign()
    }

    /// The value if it is a whole number represented as an int64: apimachinery's `AsInt64`.
    pub fn as_i64(&self) -> Option<i64> {
        match self.amount {
            Amount::Small { value, scale } if scale >= 0 => amount::scale_up(value, scale),
            _ => None,
        }
    }

    /// The value in whole units, rounded away from zero. As in Go, the result is undefined for negative big decimals
    /// and if the value exceeds an int64.
    pub fn value(&self) -> i64 {
        self.amount.scaled(0)
    }

    /// The value in thousandths, rounded away from zero. As in Go, the result is undefined if it exceeds an int64.
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
        self.amount = self.amount.sub(&other.amount);
    }

    /// Whether value, representation and format are the same: Go's `==` of two quantities. Always false for two big
    /// decimals.
    pub fn is_identical(&self, other: &Self) -> bool {
        let kept = |quantity: &Self| match &quantity.text {
            Some(text) if text.canonical => text.given.clone(),
            _ => String::new(),
        };
        self.format == other.format
            && self.amount.is_identical(&other.amount)
            && kept(self) == kept(other)
    }

    /// Heap memory in bytes: the text, and the digits of a big decimal.
    pub fn heap_bytes(&self) -> usize {
        self.text.as_ref().map_or(0, |text| text.given.len()) + self.amount.heap_bytes()
    }

    /// Upper bound, in bytes, of the memory of the sum with `other`.
    pub fn sum_bytes(&self, other: &Self) -> usize {
        self.amount.sum_bytes(&other.amount)
    }

    /// The parsed text, or the canonical form if the value was computed.
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
