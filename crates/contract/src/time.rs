//! Timestamps and durations as text and as numbers. Never reads a clock: now is always an argument.

use std::fmt;
use std::time::Duration;

use crate::limits::SETTING_DURATION_MAX;

/// Milliseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

/// Why a text is not an RFC 3339 date-time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotATimestamp;

impl fmt::Display for NotATimestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected an RFC 3339 date-time such as 2026-01-31T08:30:00Z")
    }
}

impl std::error::Error for NotATimestamp {}

impl Timestamp {
    /// The timestamp `millis` milliseconds after 1970-01-01T00:00:00Z.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since 1970-01-01T00:00:00Z.
    pub const fn millis(self) -> i64 {
        self.0
    }

    /// This instant moved forward by `by`, saturating.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(millis_of(by)))
    }

    /// This instant moved back by `by`, saturating.
    #[must_use]
    pub fn minus(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(millis_of(by)))
    }

    /// Milliseconds from `earlier` to this instant; negative when `earlier` is later.
    pub fn millis_since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Parses an RFC 3339 date-time with any offset. Digits below a millisecond are cut off, and a second of 60
    /// counts as the first second of the next minute.
    pub fn parse(text: &str) -> Result<Self, NotATimestamp> {
        Scan(text.as_bytes()).date_time().ok_or(NotATimestamp)
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC, with milliseconds when there are any.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, of_day) = (self.0.div_euclid(86_400_000), self.0.rem_euclid(86_400_000));
        let (year, month, day) = civil_from_days(days);
        let (h, m, s) = (of_day / 3_600_000, of_day / 60_000 % 60, of_day / 1000 % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}")?;
        match of_day % 1000 {
            0 => f.write_str("Z"),
            milli => write!(f, ".{milli:03}Z"),
        }
    }
}

/// The beginning of year 1 and the end of year 9999.
const FIRST_MILLIS: i64 = -62_135_596_800_000;
const LAST_MILLIS: i64 = 253_402_300_799_999;

/// The bytes still to be read.
struct Scan<'a>(&'a [u8]);

impl Scan<'_> {
    fn date_time(mut self) -> Option<Timestamp> {
        let (year, month, day) = (self.digits(4)?, self.after(b"-", 2)?, self.after(b"-", 2)?);
        if year == 0 || !(1..=12).contains(&month) || day == 0 || day > days_in_month(year, month) {
            return None;
        }
        let (hour, minute, second) = (self.after(b"Tt ", 2)?, self.after(b":", 2)?, self.after(b":", 2)?);
        if hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        let milli = self.fraction()?;
        let offset_minutes = self.offset()?;
        if !self.0.is_empty() {
            return None;
        }
        let seconds = days_from_civil(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
        let millis = (seconds - offset_minutes * 60) * 1000 + milli;
        // An offset or a leap second may lead out of the years that can be written.
        (FIRST_MILLIS..=LAST_MILLIS).contains(&millis).then_some(Timestamp(millis))
    }

    fn one_of(&mut self, accepted: &[u8]) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        accepted.contains(first).then(|| {
            self.0 = rest;
            *first
        })
    }

    fn digits(&mut self, count: usize) -> Option<i64> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        head.iter().try_fold(0, |sum, b| b.is_ascii_digit().then(|| sum * 10 + i64::from(b - b'0')))
    }

    fn after(&mut self, separator: &[u8], count: usize) -> Option<i64> {
        self.one_of(separator)?;
        self.digits(count)
    }

    fn fraction(&mut self) -> Option<i64> {
        if self.one_of(b".").is_none() {
            return Some(0);
        }
        let count = self.0.iter().take_while(|b| b.is_ascii_digit()).count();
        let (digits, rest) = self.0.split_at(count);
        self.0 = rest;
        let milli = |at: usize| digits.get(at).map_or(0, |b| i64::from(b - b'0'));
        (count > 0).then(|| milli(0) * 100 + milli(1) * 10 + milli(2))
    }

    fn offset(&mut self) -> Option<i64> {
        let sign = match self.one_of(b"Zz+-")? {
            b'+' => 1,
            b'-' => -1,
            _ => return Some(0),
        };
        let (hours, minutes) = (self.digits(2)?, self.after(b":", 2)?);
        (hours <= 23 && minutes <= 59).then_some(sign * (hours * 60 + minutes))
    }
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Days since 1970-01-01 of a proleptic Gregorian date. Years are counted from March, so that a leap day comes last.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

/// Whole milliseconds of a duration, saturating.
pub fn millis_of(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Units from the largest to the smallest, in milliseconds.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Why a text is not a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotADuration;

impl fmt::Display for NotADuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a duration such as \"25s\", \"1h30m\" or \"7d\" (units ms, s, m, h, d; at most 10 years)")
    }
}

impl std::error::Error for NotADuration {}

/// Parses `25s`, `1h30m`, `7d`: numbers with units in falling order, each unit once.
pub fn parse_duration(text: &str) -> Result<Duration, NotADuration> {
    let mut total: u64 = 0;
    let mut units = UNITS.iter();
    let mut rest = text;
    while !rest.is_empty() || text.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let letters = rest[digits..].bytes().take_while(u8::is_ascii_alphabetic).count();
        let (number, unit) = (&rest[..digits], &rest[digits..digits + letters]);
        let number: u64 = number.parse().map_err(|_| NotADuration)?;
        let &(_, size) = units.find(|(name, _)| *name == unit).ok_or(NotADuration)?;
        total = number.checked_mul(size).and_then(|part| total.checked_add(part)).ok_or(NotADuration)?;
        rest = &rest[digits + letters..];
    }
    let duration = Duration::from_millis(total);
    if duration > SETTING_DURATION_MAX { Err(NotADuration) } else { Ok(duration) }
}

/// Writes a duration as [`parse_duration`] reads it.
pub fn format_duration(duration: Duration) -> String {
    let mut rest = duration.as_millis();
    if rest == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, size) in UNITS {
        let count = rest / u128::from(size);
        rest %= u128::from(size);
        if count > 0 {
            text.push_str(&format!("{count}{unit}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_back_as_written() {
        for text in ["25s", "1h30m", "7d", "500ms", "1d12h", "0s", "1m1ms"] {
            assert_eq!(format_duration(parse_duration(text).unwrap()), text);
        }
        assert_eq!(parse_duration("90m").unwrap(), Duration::from_secs(5400));
    }

    #[test]
    fn durations_without_unit_order_or_bound_are_refused() {
        for text in
            ["", "5", "s", "5x", "1m1h", "1h1h", " 5s", "5 s", "-5s", "99999999999999999999d", "20000d", "5é"]
        {
            assert_eq!(parse_duration(text), Err(NotADuration), "{text}");
        }
    }

    #[test]
    fn timestamps_read_back_as_written() {
        for text in [
            "1970-01-01T00:00:00Z",
            "2024-02-29T23:59:59.001Z",
            "0001-01-01T00:00:00Z",
            "9999-12-31T23:59:59Z",
        ] {
            assert_eq!(Timestamp::parse(text).unwrap().to_string(), text);
        }
    }
}
