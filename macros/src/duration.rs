//! Spans of time as they are written in the attribute: `"5s"`, `"250ms"`, `"1m 30s"`.

use std::time::Duration;

const HOW: &str = "write it like \"5s\", \"250ms\", \"1m 30s\", \"2h\" or \"1d\"";

/// Reads `text`; the error says what to write.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(format!("an empty span of time; {HOW}"));
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let (number, behind) = rest.split_at(end_of(rest, |sign| sign.is_ascii_digit()));
        let behind = behind.trim_start();
        let (unit, behind) = behind.split_at(end_of(behind, char::is_alphabetic));
        let number: u64 = number
            .parse()
            .map_err(|_| format!("{text:?} is no span of time; {HOW}"))?;
        let part = span(number, unit).map_err(|why| format!("{text:?}: {why}; {HOW}"))?;
        total = total
            .checked_add(part)
            .ok_or_else(|| format!("{text:?} is too long"))?;
        rest = behind.trim_start();
    }
    Ok(total)
}

fn end_of(text: &str, belongs: impl Fn(char) -> bool) -> usize {
    text.find(|sign| !belongs(sign)).unwrap_or(text.len())
}

fn span(number: u64, unit: &str) -> Result<Duration, String> {
    let seconds = match unit {
        "ms" => return Ok(Duration::from_millis(number)),
        "s" => 1,
        "m" | "min" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        "" => return Err("a number without a unit".to_owned()),
        other => return Err(format!("`{other}` is no unit")),
    };
    let seconds = number.checked_mul(seconds).ok_or("it is too long")?;
    Ok(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read() {
        for (text, millis) in [
            ("5s", 5_000),
            ("250ms", 250),
            ("1m 30s", 90_000),
            ("1m30s", 90_000),
            (" 2 h ", 7_200_000),
            ("2min", 120_000),
            ("1d", 86_400_000),
            ("0s", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text:?}");
        }
    }

    #[test]
    fn a_bad_duration_is_refused_with_an_example() {
        for (text, part) in [
            ("", "empty"),
            ("  ", "empty"),
            ("5", "without a unit"),
            ("five", "no span of time"),
            ("5 seconds", "`seconds` is no unit"),
            ("1.5s", "without a unit"),
            ("-5s", "no span of time"),
            ("5s,", "no span of time"),
            ("18446744073709551615d", "too long"),
            ("99999999999999999999s", "no span of time"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text:?}: {error}");
        }
        assert!(parse("1.5s").unwrap_err().contains("\"250ms\""));
    }
}
