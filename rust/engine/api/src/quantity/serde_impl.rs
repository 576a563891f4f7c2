//! Quantities in JSON: decoded from a string or a number, encoded as the parsed text.

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Quantity, QuantityError};

/// The maximum number of digits before the decimal point in an object. A sum with a number that has a short text and
/// millions of digits, such as `1e10000000`, takes the memory of its digits. `AsApproximateFloat64` of apimachinery is
/// infinite for larger numbers.
const MAX_WHOLE_DIGITS: i64 = 308;

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.as_given())
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(QuantityVisitor)
    }
}

struct QuantityVisitor;

impl Visitor<'_> for QuantityVisitor {
    type Value = Quantity;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a quantity such as \"40Gi\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Quantity, E> {
        let text = text.trim();
        let quantity = Quantity::parse(text).map_err(E::custom)?;
        if quantity.amount.length() > MAX_WHOLE_DIGITS {
            return Err(E::custom(QuantityError::Exponent(text.to_owned())));
        }
        Ok(quantity)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Quantity, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Quantity, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Quantity, E> {
        if number.is_finite() {
            self.visit_str(&number.to_string())
        } else {
            Err(E::invalid_value(Unexpected::Float(number), &self))
        }
    }

    fn visit_unit<E: Error>(self) -> Result<Quantity, E> {
        Ok(Quantity::default())
    }
}
