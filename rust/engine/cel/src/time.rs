//! Timestamps and durations: parsing, formatting and arithmetic.
//!
//! UTC and offsets are supported, named time zones are not.

use std::fmt;

use crate::fault::Fault;

const NANOS: i128 = 1_000_000_000;
/// 0001-01-01T00:00:00Z and 9999-12-31T23:59:59Z.
const FIRST_SECOND: i64 = -62_135_596_800;
const LAST_SECOND: i64 = 253_402_300_799;

/// A point in time, with the offset from UTC of its text in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timestamp {
    pub(crate) seconds: i64,
    pub(crate) nanos: u32,
    pub(crate) offset: i32,
}

/// The calendar fields of a timestamp.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calendar {
    pub(crate) year: i64,
    /// From 1.
    pub(crate) month: u32,
    /// From 1.
    pub(crate) day: u32,
    /// From 0.
    pub(crate) day_of_year: i64,
    /// From 0, Sunday.
    pub(crate) day_of_week: i64,
    pub(crate) hour: i64,
    pub(crate) minute: i64,
    pub(crate) second: i64,
}

// === impl Timestamp ===

impl Timestamp {
    pub(crate) fn from_unix(seconds: i64) -> Result<Self, Fault> {
        if !(FIRST_SECOND..=LAST_SECOND).contains(&seconds) {
            return Err(Fault::new(
                "the timestamp is before the year 1 or after the year 9999",
            ));
        }
        Ok(Self {
            seconds,
            nanos: 0,
            offset: 0,
        })
    }

    /// Parses RFC 3339.
    pub(crate) fn parse(text: &str) -> Result<Self, Fault> {
        let invalid =
            || Fault::invalid(text, "is not a timestamp such as \"2026-01-31T12:00:00Z\"");
        let (date_time, zone) = Self::split_zone(text).ok_or_else(invalid)?;
        let (year, month, day, hour, minute, second, nanos) =
            Self::fields(date_time).ok_or_else(invalid)?;
        let offset = zone_offset(zone).ok_or_else(invalid)?;
        let local =
            days_from_civil(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
        let time = Self::from_unix(local - i64::from(offset))?;
        Ok(Self {
            nanos,
            offset,
            ..time
        })
    }

    fn split_zone(text: &str) -> Option<(&str, &str)> {
        if let Some(date_time) = text.strip_suffix('Z') {
            return Some((date_time, "Z"));
        }
        let at = text.len().checked_sub(6)?;
        text.is_char_boundary(at).then(|| text.split_at(at))
    }

    fn fields(text: &str) -> Option<(i64, u32, u32, i64, i64, i64, u32)> {
        // Go also accepts hours of one digit.
        let padded;
        let text = match text.as_bytes().get(12) {
            Some(b':') => {
                padded = format!("{}0{}", text.get(..11)?, text.get(11..)?);
                &padded
            }
            _ => text,
        };
        let bytes = text.as_bytes();
        let shape = b"dddd-dd-ddTdd:dd:dd";
        if bytes.len() < shape.len() {
            return None;
        }
        let (fixed, fraction) = bytes.split_at(shape.len());
        let fits = fixed.iter().zip(shape).all(|(b, s)| {
            if *s == b'd' {
                b.is_ascii_digit()
            } else {
                b == s
            }
        });
        if !fits {
            return None;
        }
        let number = |from: usize, to: usize| text[from..to].parse::<i64>().ok();
        let (year, month, day) = (number(0, 4)?, number(5, 7)? as u32, number(8, 10)? as u32);
        let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
        let valid = (1..=12).contains(&month) && (1..=days_in_month(year, month)).contains(&day);
        if !valid || hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        let nanos = match fraction {
            [] => 0,
            [b'.' | b',', digits @ ..]
                if !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) =>
            {
                let nine = digits
                    .iter()
                    .copied()
                    .chain(std::iter::repeat(b'0'))
                    .take(9);
                nine.fold(0, |n, digit| n * 10 + u32::from(digit - b'0'))
            }
            _ => return None,
        };
        Some((year, month, day, hour, minute, second, nanos))
    }

    /// Nanoseconds since 1970.
    pub(crate) fn instant(&self) -> i128 {
        i128::from(self.seconds) * NANOS + i128::from(self.nanos)
    }

    pub(crate) fn is_year_one(&self) -> bool {
        self.seconds == FIRST_SECOND && self.nanos == 0
    }

    pub(crate) fn plus(&self, nanos: i128) -> Result<Self, Fault> {
        let instant = self.instant() + nanos;
        let seconds = i64::try_from(instant.div_euclid(NANOS)).unwrap_or(i64::MAX);
        let time = Self::from_unix(seconds)?;
        Ok(Self {
            nanos: instant.rem_euclid(NANOS) as u32,
            offset: self.offset,
            ..time
        })
    }

    /// Nanoseconds from `other` to this.
    pub(crate) fn since(&self, other: &Self) -> Result<i64, Fault> {
        i64::try_from(self.instant() - other.instant()).map_err(|_| Fault::new("integer overflow"))
    }

    /// The calendar fields at an offset from UTC in seconds.
    pub(crate) fn calendar(&self, offset: i64) -> Calendar {
        let local = self.seconds + offset;
        let (days, within) = (local.div_euclid(86_400), local.rem_euclid(86_400));
        let (year, month, day) = civil_from_days(days);
        Calendar {
            year,
            month,
            day,
            day_of_year: days - days_from_civil(year, 1, 1),
            day_of_week: (days + 4).rem_euclid(7),
            hour: within / 3_600,
            minute: within / 60 % 60,
            second: within % 60,
        }
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.calendar(i64::from(self.offset));
        write!(
            f,
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}",
            at.year, at.month, at.day, at.hour, at.minute, at.second
        )?;
        if self.nanos > 0 {
            write!(f, ".{}", format!("{:09}", self.nanos).trim_end_matches('0'))?;
        }
        if self.offset == 0 {
            return f.write_str("Z");
        }
        let minutes = self.offset.abs() / 60;
        let sign = if self.offset < 0 { '-' } else { '+' };
        write!(f, "{sign}{:02}:{:02}", minutes / 60, minutes % 60)
    }
}

/// `Z` or `+hh:mm`, in seconds.
fn zone_offset(zone: &str) -> Option<i32> {
    if zone == "Z" {
        return Some(0);
    }
    let (sign, digits) = zone.split_at_checked(1)?;
    let (hours, minutes) = digits.split_once(':')?;
    let two = |part: &str| {
        (part.len() == 2 && part.bytes().all(|b| b.is_ascii_digit()))
            .then(|| part.parse::<i32>().ok())
    };
    let (hours, minutes) = (two(hours)??, two(minutes)??);
    if hours > 24 || minutes > 60 {
        return None;
    }
    let seconds = hours * 3_600 + minutes * 60;
    match sign {
        "+" => Some(seconds),
        "-" => Some(-seconds),
        _ => None,
    }
}

/// Whether the text is a valid date `yyyy-mm-dd`.
pub(crate) fn is_date(text: &str) -> bool {
    let mut parts = text.split('-').map(|part| part.parse::<i64>().ok());
    match (
        parts.next().flatten(),
        parts.next().flatten(),
        parts.next().flatten(),
    ) {
        (Some(year), Some(month @ 1..=12), Some(day)) => {
            (1..=i64::from(days_in_month(year, month as u32))).contains(&day)
        }
        _ => false,
    }
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in_month(year: i64, month: u32) -> u32 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 => 28 + u32::from(is_leap(year)),
        _ => 31,
    }
}

/// Days from 1970-01-01 in the proleptic Gregorian calendar; years are counted from March, so that the leap day is the last.
fn days_from_civil(year: i64, month: u32, day: u32) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_from_march = i64::from((month + 9) % 12);
    let day_of_year = (153 * month_from_march + 2) / 5 + i64::from(day) - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

fn civil_from_days(days: i64) -> (i64, u32, u32) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = (day_of_year - (153 * month_from_march + 2) / 5 + 1) as u32;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    } as u32;
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

/// A duration such as `1h30m` or `-1.5s`, in nanoseconds.
pub(crate) fn parse_duration(text: &str) -> Option<i64> {
    let negative = text.starts_with('-');
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let whole_end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let (whole, after) = rest.split_at(whole_end);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => after.split_at(
                after
                    .find(|c: char| !c.is_ascii_digit())
                    .unwrap_or(after.len()),
            ),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let unit_end = after
            .find(|c: char| c == '.' || c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        let nanos: u64 = match unit {
            "ns" => 1,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let whole: u64 = if whole.is_empty() {
            0
        } else {
            whole.parse().ok()?
        };
        let part = whole
            .checked_mul(nanos)
            .and_then(|n| n.checked_add(fraction_of(fraction, nanos)))?;
        total = total.checked_add(part).filter(|total| *total <= 1 << 63)?;
        rest = after;
    }
    if negative {
        0_i64.checked_sub_unsigned(total)
    } else {
        i64::try_from(total).ok()
    }
}

/// Digits after the point, as nanoseconds; digits beyond the precision of 64 bits are dropped.
fn fraction_of(digits: &str, unit: u64) -> u64 {
    let (mut value, mut scale) = (0_u64, 1.0_f64);
    for digit in digits.bytes() {
        let Some(next) = value
            .checked_mul(10)
            .and_then(|v| v.checked_add(u64::from(digit - b'0')))
        else {
            break;
        };
        if next > i64::MAX as u64 {
            break;
        }
        value = next;
        scale *= 10.0;
    }
    (value as f64 * (unit as f64 / scale)) as u64
}

/// Seconds with as many digits as needed: `5400s`, `0.5s`.
pub(crate) fn duration_text(nanos: i64) -> String {
    format!("{}s", seconds(nanos))
}

/// The duration in seconds. As in Go, whole seconds and the fraction are added as doubles.
pub(crate) fn seconds(nanos: i64) -> f64 {
    (nanos / 1_000_000_000) as f64 + (nanos % 1_000_000_000) as f64 / 1e9
}
