//! Patterns as the server understands them. Pure.

/// Whether a text matches a pattern of `*`, `?`, `[ab]`, `[^a-c]` and `\`.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    let (mut at, mut next) = (0, 0);
    // Where to go on if what follows the last star does not match.
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
    pattern[at..].iter().all(|letter| *letter == '*')
}

enum Step {
    Star,
    /// With so many letters of the pattern.
    Matches(usize),
    Differs,
}

fn step(pattern: &[char], letter: char) -> Step {
    let one = |is_it: bool, length| {
        if is_it {
            Step::Matches(length)
        } else {
            Step::Differs
        }
    };
    match pattern {
        [] => Step::Differs,
        ['*', ..] => Step::Star,
        ['?', ..] => Step::Matches(1),
        ['\\', escaped, ..] => one(*escaped == letter, 2),
        ['[', rest @ ..] => {
            let Some(end) = rest.iter().skip(1).position(|c| *c == ']').map(|at| at + 1) else {
                return one(letter == '[', 1);
            };
            let (negated, set) = match &rest[..end] {
                ['^', set @ ..] => (true, set),
                set => (false, set),
            };
            one(in_set(set, letter) != negated, end + 2)
        }
        [literal, ..] => one(*literal == letter, 1),
    }
}

fn in_set(mut set: &[char], letter: char) -> bool {
    loop {
        set = match set {
            [] => return false,
            [low, '-', high, ..] if (*low..=*high).contains(&letter) => return true,
            [_, '-', _, rest @ ..] => rest,
            [one, ..] if *one == letter => return true,
            [_, rest @ ..] => rest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_mean_what_they_mean_to_the_server() {
        for (pattern, text) in [
            ("*", ""),
            ("*", "abc"),
            ("order:*", "order:7"),
            ("*:7", "a:7:7"),
            ("a*b*c", "a-b-b-c"),
            ("?", "é"),
            ("[ab]x", "bx"),
            ("[^a]x", "bx"),
            ("[0-9]", "5"),
            ("a\\*", "a*"),
            ("[ab", "[ab"),
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
            ("[ab", "aab"),
            ("[^0-9a]x", "7x"),
            ("[a0-9]", "-"),
            ("?", ""),
        ] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }
}
