//! Patterns as the server understands them. Pure.
//!
//! It works on bytes. Invariant: every pattern matches exactly the texts that it matches at the server. The exceptions
//! are ranges with ends that are not ASCII, whose meaning depends on the kind of machine that the server runs on.

/// Whether a text matches a pattern of `*`, `?`, `[ab]`, `[^a-c]` and `\`.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut at, mut next) = (0, 0);
    // The place to continue from if the text after the last star does not match.
    let mut star: Option<(usize, usize)> = None;
    while next < text.len() {
        match step(&pattern[at..], text[next]) {
            Step::Star => {
                at += 1;
                star = Some((at, next));
            }
            Step::Matches(length) => {
                at += length;
                next += 1;
            }
            Step::Differs => match &mut star {
                Some((after, from)) => {
                    *from += 1;
                    (at, next) = (*after, *from);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// A glob that matches only this text.
pub(crate) fn literal(text: &str) -> String {
    let mut glob = String::new();
    for letter in text.chars() {
        if "*?[]^\\".contains(letter) {
            glob.push('\\');
        }
        glob.push(letter);
    }
    glob
}

enum Step {
    Star,
    /// It matches, with this many bytes of the pattern.
    Matches(usize),
    Differs,
}

fn step(pattern: &[u8], byte: u8) -> Step {
    let one = |is_it: bool, length| {
        if is_it {
            Step::Matches(length)
        } else {
            Step::Differs
        }
    };
    match pattern {
        [] => Step::Differs,
        [b'*', ..] => Step::Star,
        [b'?', ..] => Step::Matches(1),
        [b'\\', escaped, ..] => one(*escaped == byte, 2),
        [b'[', b'^', set @ ..] => {
            let (is_in, rest) = in_set(set, byte);
            one(!is_in, pattern.len() - rest.len())
        }
        [b'[', set @ ..] => {
            let (is_in, rest) = in_set(set, byte);
            one(is_in, pattern.len() - rest.len())
        }
        [literal, ..] => one(*literal == byte, 1),
    }
}

/// Whether the byte is in the set, which ends with the next `]` or with the pattern. Also returns the rest of the
/// pattern.
fn in_set(mut set: &[u8], byte: u8) -> (bool, &[u8]) {
    let mut is_in = false;
    loop {
        let is_one;
        (is_one, set) = match set {
            [] => return (is_in, set),
            [b']', rest @ ..] => return (is_in, rest),
            [b'\\', escaped, rest @ ..] => (*escaped == byte, rest),
            [one, b'-', other, rest @ ..] => {
                let range = *one.min(other)..=*one.max(other);
                (range.contains(&byte), rest)
            }
            [one, rest @ ..] => (*one == byte, rest),
        };
        is_in |= is_one;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_they_mean_to_the_server() {
        for (pattern, text) in [
            ("*", ""),
            ("*", "abc"),
            ("order:*", "order:7"),
            ("*:7", "a:7:7"),
            ("a*b*c", "a-b-b-c"),
            ("??", "é"),
            ("[ab]x", "bx"),
            ("[^a]x", "bx"),
            ("[0-9]", "5"),
            ("a\\*", "a*"),
            ("[^0-9a]x", "bx"),
            ("[a0-9]x", "7x"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("", "a"),
            ("order:*", "orders"),
            ("a*b", "a-b-c"),
            ("[ab]x", "cx"),
            ("[^a]x", "ax"),
            ("[0-9]", "a"),
            ("a\\*", "ab"),
            ("[^0-9a]x", "7x"),
            ("[a0-9]", "-"),
            ("?", ""),
            ("?", "é"),
        ] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    /// The results of `KEYS` of Redis 7.0.
    #[test]
    fn odd_patterns_mean_what_they_mean_to_the_server() {
        let texts = ["a", "b", "[", "]", "^", "-", "\\", "[ab", "]a", "é"];
        for (pattern, expected) in [
            ("[ab", &["a", "b"][..]),
            ("[", &[]),
            ("[]", &[]),
            ("[]a]", &[]),
            ("[^]a", &["]a"]),
            ("[^", &["a", "b", "[", "]", "^", "-", "\\"]),
            ("[b-a]", &["a", "b"]),
            ("[a-", &["a", "-"]),
            ("[a-]", &["a", "]", "^"]),
            ("[\\]a]", &["a", "]"]),
            ("[\\", &["\\"]),
            ("\\", &["\\"]),
            ("[^é]", &["a", "b", "[", "]", "^", "-", "\\"]),
        ] {
            let matching = texts.into_iter().filter(|text| matches(pattern, text));
            assert_eq!(matching.collect::<Vec<_>>(), expected, "{pattern}");
        }
    }

    #[test]
    fn a_prefix_is_no_pattern() {
        assert_eq!(literal("app:[x]*?^\\"), "app:\\[x\\]\\*\\?\\^\\\\");
    }
}
