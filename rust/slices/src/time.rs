//! Parses the times of taints: RFC 3339, in whole seconds.

/// Returns seconds since 1970, rounded to the nearest; `None` if the text is not RFC 3339.
pub(crate) fn seconds(text: &str) -> Option<i64> {
    let (date, rest) = text.split_once(['T', 't'])?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let zone = rest.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = rest.split_at(zone);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let mut clock = clock.splitn(3, ':').map(|part| part.parse::<i64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let half = i64::from(fraction.bytes().next().is_some_and(|digit| digit >= b'5'));
    let days = days_since_1970(year, month, day)?;
    Some(days * 86_400 + hour * 3_600 + minute * 60 + second + half - offset(zone)?)
}

fn offset(zone: &str) -> Option<i64> {
    if zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let sign = if zone.starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    Some(sign * (hours.parse::<i64>().ok()? * 3_600 + minutes.parse::<i64>().ok()? * 60))
}

/// Returns days in the proleptic Gregorian calendar. Years are counted from March, so that the leap day is the last
/// day.
fn days_since_1970(year: i64, month: i64, day: i64) -> Option<i64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let year = if month > 2 { year } else { year - 1 };
    let month = (month + 9) % 12;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    Some(year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468)
}

#[cfg(test)]
mod tests {
    use super::seconds;

    #[test]
    fn reads_what_the_api_server_writes() {
        assert_eq!(seconds("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(seconds("2024-02-29T12:00:00Z"), Some(1_709_208_000));
        assert_eq!(
            seconds("2026-11-21T08:26:00+01:00"),
            seconds("2026-11-21T07:26:00Z")
        );
        assert_eq!(
            seconds("2026-11-21T08:26:00.6Z"),
            seconds("2026-11-21T08:26:01Z")
        );
        assert_eq!(seconds("yesterday"), None);
    }
    /// Checks every day of eight centuries against the lengths of the months.
    #[test]
    fn days_follow_each_other_through_all_leap_years() {
        let leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let mut expected = -11_676_096_000;
        assert_eq!(seconds("1970-01-01T00:00:00Z"), Some(0));
        for year in 1600..2400 {
            let february = if leap(year) { 29 } else { 28 };
            let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
            for (month, length) in lengths.into_iter().enumerate() {
                for day in 1..=length {
                    let text = format!("{year}-{:02}-{day:02}T00:00:00Z", month + 1);
                    assert_eq!(seconds(&text), Some(expected), "{text}");
                    expected += 86_400;
                }
            }
        }
    }

    #[test]
    fn hours_minutes_seconds_and_zones_count() {
        for (text, expected) in [
            ("1970-01-01T01:00:00Z", 3_600),
            ("1970-01-01T00:01:00Z", 60),
            ("1970-01-01T23:59:59Z", 86_399),
            ("1970-01-01t00:00:01z", 1),
            ("1970-01-01T02:45:00+02:45", 0),
            ("1970-01-01T00:00:00-01:30", 5_400),
            ("1970-01-01T00:00:09.499Z", 9),
            ("1970-01-01T00:00:09.5Z", 10),
        ] {
            assert_eq!(seconds(text), Some(expected), "{text}");
        }
        for text in [
            "1970-00-01T00:00:00Z",
            "1970-13-01T00:00:00Z",
            "1970-01-00T00:00:00Z",
            "1970-01-32T00:00:00Z",
            "1970-01-01T00:00:00",
            "1970-01-01T00:00:00+0100",
        ] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }
}
