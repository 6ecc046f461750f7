//! Times as people write them: `10s`, `2.5s`, `1m30s`, `500ms`. A number needs its unit, as in the attribute
//! `#[locked]`; only `0` has none. And percentages.

use std::time::Duration;

/// Reads a time; for clap.
pub(crate) fn read(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let unit_at = text.find(|sign: char| sign != '.' && !sign.is_ascii_digit());
    let (number, unit) = text.split_at(unit_at.unwrap_or(text.len()));
    let seconds = match unit.trim() {
        "s" => 1.0,
        "" if number == "0" => 1.0,
        "" if !number.is_empty() => {
            return Err(format!("a unit is missing: write {number}s or {number}ms"));
        }
        "ms" => 0.001,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        // That of the longest lease.
        "y" | "yr" | "year" | "years" => 365.0 * 86400.0,
        // Several parts, or a unit in full.
        _ => return humantime::parse_duration(text).map_err(|_| wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())
}

/// A part of the server's time, in percent; for clap.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.trim_end_matches('%').parse().ok();
    let number = number.filter(|number| (0.01..=100.0).contains(number));
    number.ok_or_else(|| "write a part of 100, such as 5".to_owned())
}

fn wrong() -> String {
    "write a span of time such as 500ms, 2.5s, 10s, 1m30s or 24h".to_owned()
}

/// Two units at most: `1m 30s`, `2.4s`, `310ms`. A permit of Redisson's without a lease has some 29,000 years left.
pub(crate) fn show(span: Duration) -> String {
    const CENTURY_MS: u128 = 100 * 365 * 86_400_000;
    let ms = span.as_millis();
    match ms {
        CENTURY_MS.. => "no end".to_owned(),
        0..1_000 => format!("{ms}ms"),
        1_000..60_000 => format!("{}.{}s", ms / 1_000, ms % 1_000 / 100),
        60_000..3_600_000 => format!("{}m {:02}s", ms / 60_000, ms % 60_000 / 1_000),
        3_600_000..86_400_000 => format!("{}h {:02}m", ms / 3_600_000, ms % 3_600_000 / 60_000),
        _ => format!("{}d {:02}h", ms / 86_400_000, ms % 86_400_000 / 3_600_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        for (text, ms) in [
            ("2.5s", 2_500),
            ("500ms", 500),
            ("1m30s", 90_000),
            ("15m", 900_000),
            ("24h", 86_400_000),
            ("90d", 7_776_000_000),
            ("1y", 31_536_000_000),
            ("1 year", 31_536_000_000),
            ("0", 0),
        ] {
            assert_eq!(read(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "-1", "10", "2.5", "ten", "1x", "1.2.3s", "1e99d"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_span_is_shown_in_two_units_at_most() {
        for (ms, text) in [
            (310, "310ms"),
            (2_450, "2.4s"),
            (90_000, "1m 30s"),
            (7_260_000, "2h 01m"),
            (356_400_000, "4d 03h"),
            (920_541_125_727_797, "no end"),
        ] {
            assert_eq!(show(Duration::from_millis(ms)), text);
        }
    }
}
