//! The number inside a quantity: `value × 10^scale`, small or big.

use std::cmp::Ordering;

use num_bigint::{BigInt, Sign};

/// Kubernetes rounds everything finer away from zero.
pub(super) const NANO: i32 = -9;
/// Numbers whose estimated lengths differ by more are told apart by them.
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

    /// The sum; small where both are small and an int64 holds it.
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

    /// The value as a multiple of `10^scale`, where `scale` is not above the amount's own.
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
        // Numbers that are far apart are told apart by their lengths, so that no power of ten of an absurd exponent is
        // ever computed.
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

    /// Whether both are small, with the same digits and the same scale.
    pub(super) fn is_identical(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Small { value: a, scale: p }, Self::Small { value: b, scale: q }) => {
                (a, p) == (b, q)
            }
            _ => false,
        }
    }

    /// How many digits stand left of the decimal point (zero or negative for fractions), give or take one.
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

    /// Bytes of the sum of both, at most.
    pub(super) fn sum_bytes(&self, other: &Self) -> usize {
        let digits = self.length().max(other.length()) - i64::from(self.scale().min(other.scale()));
        // A byte holds two digits.
        usize::try_from(digits / 2).unwrap_or(0) + size_of::<BigInt>()
    }

    /// The value as a multiple of `10^wanted`, rounded away from zero; what apimachinery leaves of it where no int64 holds it.
    pub(super) fn scaled(&self, wanted: i32) -> i64 {
        match self {
            Self::Small { value, scale } if *scale < wanted => {
                scale_down(*value, scale.abs_diff(wanted)).0
            }
            Self::Small { value, scale } => {
                let places = scale.saturating_sub(wanted);
                scale_up(*value, places).unwrap_or_else(|| overflown(*value, places))
            }
            Self::Big { value, scale } => scaled_big(value, wanted.saturating_sub(*scale)),
        }
    }

    /// The value as a multiple of `10^scale` rounded away from zero, and whether it was exact.
    pub(super) fn rounded(&self, wanted: i32) -> (BigInt, bool) {
        if self.scale() >= wanted {
            return (self.units(wanted), true);
        }
        let divisor = power_of_ten(self.scale().abs_diff(wanted));
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

/// apimachinery multiplies by the usual powers of ten at once and keeps the low 64 bits; by others it gives up.
fn overflown(value: i64, places: i32) -> i64 {
    match places {
        1 | 2 | 3 | 6 | 9 if value != i64::MIN => {
            value.wrapping_mul(10_i64.wrapping_pow(places.unsigned_abs()))
        }
        _ => 0,
    }
}

/// apimachinery's `scaledValue`: a negative fraction is rounded up, and what overflows keeps its low 64 bits.
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
    // Euclidean division and one more where there is a rest: one above the truncated value, or the value itself.
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

/// `value × 10^scale` where an int64 holds it.
pub(super) fn scale_up(value: i64, scale: i32) -> Option<i64> {
    if value == 0 || scale == 0 {
        return Some(value);
    }
    value.checked_mul(10_i64.checked_pow(u32::try_from(scale).ok()?)?)
}

/// `value ÷ 10^places` rounded away from zero, and whether it was exact.
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
