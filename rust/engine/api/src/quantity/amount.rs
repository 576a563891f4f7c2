//! The number inside a quantity: `value × 10^scale`, small or big.

use std::cmp::Ordering;

use num_bigint::{BigInt, Sign};

/// The smallest scale. Kubernetes rounds finer amounts away from zero.
pub(super) const NANO: i32 = -9;
/// Maximum error, in digits, of the difference of two estimated lengths.
const LENGTH_ERROR: u64 = 2;

#[derive(Debug, Clone)]
pub(super) enum Amount {
    Small { value: i64, scale: i32 },
    Big { value: BigInt, scale: i32 },
}

impl Amount {
    pub(super) fn sign(&self) -> Ordering {
        match self {
            Self::Small { value, .. } => value.cmp(&0),
            Self::Big { value, .. } => match value.sign() {
                Sign::Minus => Ordering::Less,
                Sign::NoSign => Ordering::Equal,
                Sign::Plus => Ordering::Greater,
            },
        }
    }

    pub(super) fn scale(&self) -> i32 {
        match self {
            Self::Small { scale, .. } | Self::Big { scale, .. } => *scale,
        }
    }

    pub(super) fn to_big(&self) -> BigInt {
        match self {
            Self::Small { value, .. } => BigInt::from(*value),
            Self::Big { value, .. } => value.clone(),
        }
    }

    pub(super) fn negated(&self) -> Self {
        match self {
            Self::Small { value, scale } => Self::Small {
                value: value.wrapping_neg(),
                scale: *scale,
            },
            Self::Big { value, scale } => Self::Big {
                value: -value,
                scale: *scale,
            },
        }
    }

    /// The sum; `Small` if both are `Small` and it fits into an int64.
    pub(super) fn add(&self, other: &Self) -> Self {
        if let (Self::Small { value: a, scale: p }, Self::Small { value: b, scale: q }) =
            (self, other)
            && let Some(sum) = add_small((*a, *p), (*b, *q))
        {
            return sum;
        }
        let scale = self.scale().min(other.scale());
        Self::Big {
            value: self.units(scale) + other.units(scale),
            scale,
        }
    }

    /// The difference; `Small` if both are `Small` and it fits into an int64. The lowest int64 is then subtracted as if it
    /// were added, as in apimachinery.
    pub(super) fn sub(&self, other: &Self) -> Self {
        if let (Self::Small { value: a, scale: p }, Self::Small { value: b, scale: q }) =
            (self, other)
            && let Some(difference) = add_small((*a, *p), (b.wrapping_neg(), *q))
        {
            return difference;
        }
        let scale = self.scale().min(other.scale());
        Self::Big {
            value: self.units(scale) - other.units(scale),
            scale,
        }
    }

    /// The value as a multiple of `10^scale`; `scale` must not exceed the amount's scale.
    fn units(&self, scale: i32) -> BigInt {
        self.to_big() * power_of_ten(self.scale().abs_diff(scale))
    }

    pub(super) fn cmp(&self, other: &Self) -> Ordering {
        let (left, right) = (self.sign(), other.sign());
        if left != right || left == Ordering::Equal {
            return left.cmp(&right);
        }
        if let (Self::Small { value: a, scale: p }, Self::Small { value: b, scale: q }) =
            (self, other)
        {
            let scale = *p.min(q);
            if let (Some(a), Some(b)) = (
                scale_up(*a, p.saturating_sub(scale)),
                scale_up(*b, q.saturating_sub(scale)),
            ) {
                return a.cmp(&b);
            }
        }
        // Amounts with different lengths are compared by length, which avoids powers of ten with huge exponents.
        let (a, b) = (self.length(), other.length());
        if a.abs_diff(b) > LENGTH_ERROR {
            let by_size = a.cmp(&b);
            return if left == Ordering::Less {
                by_size.reverse()
            } else {
                by_size
            };
        }
        let scale = self.scale().min(other.scale());
        self.units(scale).cmp(&other.units(scale))
    }

    /// Whether both are `Small` with the same digits and the same scale.
    pub(super) fn is_identical(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Small { value: a, scale: p }, Self::Small { value: b, scale: q }) => {
                (a, p) == (b, q)
            }
            _ => false,
        }
    }

    /// The number of digits before the decimal point (zero or negative for fractions), with an error of one.
    pub(super) fn length(&self) -> i64 {
        let bits = match self {
            Self::Small { value, .. } => {
                u64::from(u64::BITS - value.unsigned_abs().leading_zeros())
            }
            Self::Big { value, .. } => value.bits(),
        };
        let digits = bits as f64 * std::f64::consts::LOG10_2;
        digits as i64 + i64::from(self.scale())
    }

    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            Self::Small { .. } => 0,
            Self::Big { value, .. } => usize::try_from(value.bits() / 8).unwrap_or(usize::MAX),
        }
    }

    /// Upper bound, in bytes, of the sum of both.
    pub(super) fn sum_bytes(&self, other: &Self) -> usize {
        let digits = self.length().max(other.length()) - i64::from(self.scale().min(other.scale()));
        // A byte holds two digits.
        usize::try_from(digits / 2).unwrap_or(0) + size_of::<BigInt>()
    }

    /// The value as a multiple of `10^target_scale`, rounded away from zero. On overflow, the same bits as apimachinery.
    pub(super) fn scaled(&self, target_scale: i32) -> i64 {
        match self {
            Self::Small { value, scale } if *scale < target_scale => {
                scale_down(*value, scale.abs_diff(target_scale)).0
            }
            Self::Small { value, scale } => {
                let places = scale.saturating_sub(target_scale);
                scale_up(*value, places).unwrap_or_else(|| overflowed_value(*value, places))
            }
            Self::Big { value, scale } => scaled_big(value, target_scale.saturating_sub(*scale)),
        }
    }

    /// The value as a multiple of `10^target_scale` rounded away from zero, and whether it is exact.
    pub(super) fn rounded(&self, target_scale: i32) -> (BigInt, bool) {
        if self.scale() >= target_scale {
            return (self.units(target_scale), true);
        }
        let divisor = power_of_ten(self.scale().abs_diff(target_scale));
        let value = self.to_big();
        let quotient = &value / &divisor;
        if &quotient * &divisor == value {
            return (quotient, true);
        }
        let step = if value.sign() == Sign::Minus { -1 } else { 1 };
        (quotient + step, false)
    }

    pub(super) fn approximate(&self) -> f64 {
        let base = match self {
            Self::Small { value, .. } => *value as f64,
            Self::Big { value, .. } => value.to_string().parse().unwrap_or(f64::NAN),
        };
        match self.scale() {
            0 => base,
            scale => base * pow10(scale),
        }
    }
}

/// apimachinery has fast paths for these powers of ten, which keep the low 64 bits; for all others it returns 0.
fn overflowed_value(value: i64, places: i32) -> i64 {
    match places {
        1 | 2 | 3 | 6 | 9 if value != i64::MIN => {
            value.wrapping_mul(10_i64.wrapping_pow(places.unsigned_abs()))
        }
        _ => 0,
    }
}

/// apimachinery's `scaledValue`: rounds a negative fraction up, and keeps the low 64 bits on overflow.
fn scaled_big(value: &BigInt, places: i32) -> i64 {
    let low = low_bits(value);
    if places <= 0 {
        return low.wrapping_mul(10_i64.wrapping_pow(places.unsigned_abs()));
    }
    if let Some(divisor) = 10_i64.checked_pow(places.unsigned_abs())
        && *value < BigInt::from(i64::MAX)
    {
        return low / divisor + i64::from(low % divisor != 0);
    }
    let divisor = power_of_ten(places.unsigned_abs());
    let (truncated, rest) = (value / &divisor, value % &divisor);
    // apimachinery adds one to the Euclidean quotient if there is a remainder. For a negative value this is the
    // truncated quotient.
    let up = rest.sign() == Sign::Plus;
    low_bits(&truncated).wrapping_add(i64::from(up))
}

/// Go's `math.Pow10`: exact decimal literals, zero and infinity outside of their range.
fn pow10(exponent: i32) -> f64 {
    match exponent {
        ..-323 => 0.0,
        309.. => f64::INFINITY,
        _ => format!("1e{exponent}").parse().unwrap_or(f64::NAN),
    }
}

pub(super) fn power_of_ten(exponent: u32) -> BigInt {
    BigInt::from(10).pow(exponent)
}

/// The low 64 bits in two's complement.
fn low_bits(value: &BigInt) -> i64 {
    let low = value.iter_u64_digits().next().unwrap_or(0) as i64;
    if value.sign() == Sign::Minus {
        low.wrapping_neg()
    } else {
        low
    }
}

fn add_small((a, p): (i64, i32), (b, q): (i64, i32)) -> Option<Amount> {
    if b == 0 {
        return Some(Amount::Small { value: a, scale: p });
    }
    if a == 0 {
        return Some(Amount::Small { value: b, scale: q });
    }
    let scale = p.min(q);
    let a = scale_up(a, p.checked_sub(scale)?)?;
    let b = scale_up(b, q.checked_sub(scale)?)?;
    let value = a.checked_add(b)?;
    Some(Amount::Small { value, scale })
}

/// `value × 10^scale`, or `None` if it does not fit into an int64.
pub(super) fn scale_up(value: i64, scale: i32) -> Option<i64> {
    if value == 0 || scale == 0 {
        return Some(value);
    }
    value.checked_mul(10_i64.checked_pow(u32::try_from(scale).ok()?)?)
}

/// `value ÷ 10^places` rounded away from zero, and whether it is exact.
pub(super) fn scale_down(value: i64, places: u32) -> (i64, bool) {
    let Some(divisor) = 10_i64.checked_pow(places) else {
        return (value.signum(), value == 0);
    };
    let quotient = value / divisor;
    if value % divisor == 0 {
        (quotient, true)
    } else {
        (quotient + value.signum(), false)
    }
}
