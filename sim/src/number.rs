//! Numbers as the server reads and writes them.

/// An integer, in the one form that the server accepts: no sign before a positive one, no zero in front.
pub(crate) fn int(text: &[u8]) -> Option<i64> {
    let number: i64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == text).then_some(number)
}

/// A floating-point number; infinity by name only, and never `nan`.
pub(crate) fn float(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let number: f64 = text.parse().ok()?;
    let is_named = text.contains(['i', 'I']);
    (!number.is_nan() && number.is_infinite() == is_named).then_some(number)
}

/// As C prints it with `%.17g`: what a script passes to a command, and the score of a member.
pub(crate) fn text(number: f64) -> String {
    const DIGITS: i32 = 17;
    if number.is_nan() {
        return if number.is_sign_negative() {
            "-nan"
        } else {
            "nan"
        }
        .to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "checked to be a whole number in range"
    )]
    if number.fract() == 0.0 && number.abs() < 1e15 && !(number == 0.0 && number.is_sign_negative())
    {
        return (number as i64).to_string();
    }
    let scientific = format!("{number:.16e}");
    let (mantissa, exponent) = scientific.split_once('e').expect("an exponent");
    let exponent: i32 = exponent.parse().expect("a number");
    if (-4..DIGITS).contains(&exponent) {
        let places = usize::try_from(DIGITS - 1 - exponent).expect("not negative");
        return without_zeros(&format!("{number:.places$}"));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", without_zeros(mantissa), exponent.abs())
}

fn without_zeros(number: &str) -> String {
    if !number.contains('.') {
        return number.to_owned();
    }
    number
        .trim_end_matches('0')
        .trim_end_matches('.')
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_printed_as_c_does() {
        for (number, printed) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (30_000.0, "30000"),
            (1_763_000_000_123.125, "1763000000123.125"),
            (-1_763_000_000_123.0, "-1763000000123"),
            (0.1, "0.10000000000000001"),
            (1e15, "1000000000000000"),
            (1e16, "10000000000000000"),
            (1e17, "1e+17"),
            (1.5e300, "1.5000000000000001e+300"),
            (1e-7, "9.9999999999999995e-08"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(text(number), printed);
        }
    }

    #[test]
    fn only_what_the_server_accepts_is_a_number() {
        for (written, number) in [
            ("0", Some(0)),
            ("-7", Some(-7)),
            ("+7", None),
            ("07", None),
            ("-0", None),
            ("7.0", None),
            (" 7", None),
            ("", None),
        ] {
            assert_eq!(int(written.as_bytes()), number, "{written}");
        }
        for (written, is_number) in [
            ("1.5", true),
            ("inf", true),
            ("-inf", true),
            ("1e400", false),
            ("nan", false),
            ("x", false),
            ("", false),
        ] {
            assert_eq!(float(written.as_bytes()).is_some(), is_number, "{written}");
        }
    }
}
