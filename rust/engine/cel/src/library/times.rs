//! The parts of timestamps and durations.

use super::{Signature, member};
use crate::fault::Fault;
use crate::time::{self, Calendar, Timestamp};
use crate::value::Value;

#[rustfmt::skip]
pub(super) const TABLE: &[Signature] = &[
    member("timestamp_to_year", "getFullYear", "timestamp", "int", |args, _| part(args, |at, _| at.year)),
    member("timestamp_to_year_with_tz", "getFullYear", "timestamp; string", "int", |args, _| part(args, |at, _| at.year)),
    member("timestamp_to_month", "getMonth", "timestamp", "int", |args, _| part(args, month)),
    member("timestamp_to_month_with_tz", "getMonth", "timestamp; string", "int", |args, _| part(args, month)),
    member("timestamp_to_day_of_year", "getDayOfYear", "timestamp", "int", |args, _| part(args, |at, _| at.day_of_year)),
    member("timestamp_to_day_of_year_with_tz", "getDayOfYear", "timestamp; string", "int", |args, _| part(args, |at, _| at.day_of_year)),
    member("timestamp_to_day_of_month", "getDayOfMonth", "timestamp", "int", |args, _| part(args, day_from_zero)),
    member("timestamp_to_day_of_month_with_tz", "getDayOfMonth", "timestamp; string", "int", |args, _| part(args, day_from_zero)),
    member("timestamp_to_day_of_month_1_based", "getDate", "timestamp", "int", |args, _| part(args, day_from_one)),
    member("timestamp_to_day_of_month_1_based_with_tz", "getDate", "timestamp; string", "int", |args, _| part(args, day_from_one)),
    member("timestamp_to_day_of_week", "getDayOfWeek", "timestamp", "int", |args, _| part(args, |at, _| at.day_of_week)),
    member("timestamp_to_day_of_week_with_tz", "getDayOfWeek", "timestamp; string", "int", |args, _| part(args, |at, _| at.day_of_week)),
    member("timestamp_to_hours", "getHours", "timestamp", "int", |args, _| part(args, |at, _| at.hour)),
    member("timestamp_to_hours_with_tz", "getHours", "timestamp; string", "int", |args, _| part(args, |at, _| at.hour)),
    member("duration_to_hours", "getHours", "duration", "int", |args, _| length(args, 3_600.0)),
    member("timestamp_to_minutes", "getMinutes", "timestamp", "int", |args, _| part(args, |at, _| at.minute)),
    member("timestamp_to_minutes_with_tz", "getMinutes", "timestamp; string", "int", |args, _| part(args, |at, _| at.minute)),
    member("duration_to_minutes", "getMinutes", "duration", "int", |args, _| length(args, 60.0)),
    member("timestamp_to_seconds", "getSeconds", "timestamp", "int", |args, _| part(args, |at, _| at.second)),
    member("timestamp_to_seconds_with_tz", "getSeconds", "timestamp; string", "int", |args, _| part(args, |at, _| at.second)),
    member("duration_to_seconds", "getSeconds", "duration", "int", |args, _| length(args, 1.0)),
    member("timestamp_to_milliseconds", "getMilliseconds", "timestamp", "int", |args, _| part(args, milliseconds)),
    member("timestamp_to_milliseconds_with_tz", "getMilliseconds", "timestamp; string", "int", |args, _| part(args, milliseconds)),
    member(
        "duration_to_milliseconds",
        "getMilliseconds",
        "duration",
        "int",
        |args, _| match &args[0] {
            Value::Duration(nanos) => Ok(Value::Int(nanos / 1_000_000)),
            other => Err(Fault::no_overload_for(other)),
        },
    ),
];

/// A calendar field, in UTC or in the time zone of the second argument.
fn part(args: &[Value], of: fn(&Calendar, &Timestamp) -> i64) -> Result<Value, Fault> {
    let Value::Timestamp(time) = &args[0] else {
        return Err(Fault::no_overload_for(&args[0]));
    };
    let offset = match args.get(1) {
        Some(zone) => offset(zone.as_str()?)?,
        None => 0,
    };
    Ok(Value::Int(of(&time.calendar(offset), time)))
}

fn month(at: &Calendar, _: &Timestamp) -> i64 {
    i64::from(at.month) - 1
}

fn day_from_zero(at: &Calendar, _: &Timestamp) -> i64 {
    i64::from(at.day) - 1
}

fn day_from_one(at: &Calendar, _: &Timestamp) -> i64 {
    i64::from(at.day)
}

fn milliseconds(_: &Calendar, time: &Timestamp) -> i64 {
    i64::from(time.nanos / 1_000_000)
}

fn length(args: &[Value], unit: f64) -> Result<Value, Fault> {
    match &args[0] {
        Value::Duration(nanos) => Ok(Value::Int((time::seconds(*nanos) / unit) as i64)),
        other => Err(Fault::no_overload_for(other)),
    }
}

/// Seconds east of UTC for `UTC` and `+hh:mm`. Named time zones are not supported.
fn offset(zone: &str) -> Result<i64, Fault> {
    if matches!(zone, "" | "UTC") {
        return Ok(0);
    }
    let unknown = || {
        Fault::invalid(
            zone,
            "is not a supported time zone; use UTC or an offset such as \"+02:00\"",
        )
    };
    let (hours, minutes) = zone.split_once(':').ok_or_else(unknown)?;
    let hours: i64 = hours.parse().map_err(|_| unknown())?;
    let minutes: i64 = minutes.parse().map_err(|_| unknown())?;
    let hours = hours.wrapping_mul(60);
    let minutes = if zone.starts_with('-') {
        hours.wrapping_sub(minutes)
    } else {
        hours.wrapping_add(minutes)
    };
    // Kubernetes computes with nanoseconds in 64 bits, which wrap.
    Ok(time::seconds(minutes.wrapping_mul(60_000_000_000)) as i64)
}
