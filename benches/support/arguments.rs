//! The part of criterion's command line that also concerns what criterion does not run itself.

/// How much to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Only show that it runs (`--test`, or no `--bench`, which is how `cargo test` calls it).
    Test,
    /// `--quick`.
    Quick,
    Full,
}

#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) effort: Effort,
    /// `LOCKSET_BENCH=ratios`: without the times by criterion, which take most of the run.
    pub(crate) ratios_only: bool,
    /// `--list`, `--profile-time` or a comparison of stored results: criterion is on its own.
    criterion_only: bool,
    /// A part of the name, where criterion takes a regular expression.
    filter: Option<String>,
    exact: bool,
}

/// Options of criterion that take the next word.
const WITH_VALUE: [&str; 20] = [
    "-b",
    "-c",
    "-s",
    "--baseline",
    "--baseline-lenient",
    "--color",
    "--colour",
    "--confidence-level",
    "--format",
    "--load-baseline",
    "--measurement-time",
    "--noise-threshold",
    "--nresamples",
    "--output-format",
    "--plotting-backend",
    "--profile-time",
    "--sample-size",
    "--save-baseline",
    "--significance-level",
    "--warm-up-time",
];

impl Arguments {
    pub(crate) fn of_this_run() -> Self {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let has = |flag: &str| words.iter().any(|word| word == flag);
        let effort = if has("--test") || !has("--bench") {
            Effort::Test
        } else if has("--quick") {
            Effort::Quick
        } else {
            Effort::Full
        };
        let mut filter = None;
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            if WITH_VALUE.contains(&word.as_str()) {
                rest.next();
            } else if !word.starts_with('-') {
                filter = Some(word.clone());
            }
        }
        let starts = |flag: &str| words.iter().any(|word| word.starts_with(flag));
        Self {
            effort,
            ratios_only: std::env::var("LOCKSET_BENCH").is_ok_and(|what| what == "ratios"),
            criterion_only: has("--list")
                || has("--ignored")
                || starts("--profile-time")
                || starts("--load-baseline"),
            filter,
            exact: has("--exact"),
        }
    }

    /// Whether to run the comparison called `name`.
    pub(crate) fn wants(&self, name: &str) -> bool {
        !self.criterion_only
            && self.filter.as_ref().is_none_or(|filter| {
                if self.exact {
                    name == filter
                } else {
                    name.contains(filter.as_str())
                }
            })
    }

    /// For a bench without criterion's part: says what there is, if that is what was asked.
    pub(crate) fn listed(&self, names: &[&str]) -> bool {
        let list = std::env::args().any(|word| word == "--list");
        if list {
            for name in names {
                println!("{name}: benchmark");
            }
        }
        list
    }

    /// `full`, or less of it.
    pub(crate) fn scaled(&self, full: usize) -> usize {
        match self.effort {
            Effort::Full => full,
            Effort::Quick => full.div_ceil(2),
            Effort::Test => 1,
        }
    }
}
