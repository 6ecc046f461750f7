//! `names`: the names of locks, for the completions of shells.

use std::time::Duration;

use clap::Args;
use lockset::Client;
use lockset_operator::Survey;
use tokio::time::timeout;

use crate::connect::Context;
use crate::failure::Outcome;
use crate::status;

/// The bound on the answer: a person has pressed a key and waits.
const TIME_MAX: Duration = Duration::from_millis(600);

const NAMES_MAX: usize = 100;

/// The part of the server's time that the search may take.
const SHARE: f64 = 0.5;

/// Print names of locks that begin with these letters: some of the locks that are held or waited for.
///
/// It ends soon, and prints nothing if the server does not answer.
#[derive(Args)]
pub(crate) struct Names {
    #[arg(default_value = "")]
    beginning: String,
}

impl Names {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let mut names = Vec::new();
        // Without an answer there are no names.
        let _ = timeout(TIME_MAX, self.find(context, &mut names)).await;
        names.sort_unstable();
        names.dedup();
        for name in names.iter().take(NAMES_MAX) {
            if !context.output.is_read(name)? {
                break;
            }
        }
        Ok(status::OK)
    }

    /// Adds them as they are found.
    async fn find(&self, context: &Context, names: &mut Vec<String>) -> Option<()> {
        let client: Client = context.client().await.ok()?;
        let survey = Survey::new(&client).matching(&pattern(&self.beginning));
        let survey = survey.share(SHARE);
        let contended = survey.contended().await.unwrap_or_default();
        names.extend(contended.into_iter().map(|lock| lock.name));
        names.retain(|name| can_be_typed(name));
        let mut scan = survey.scan();
        while names.len() < NAMES_MAX
            && let Some(locks) = scan.next().await.ok()?
        {
            let found = locks.into_iter().map(|lock| lock.name);
            names.extend(found.filter(|name| can_be_typed(name)));
        }
        Some(())
    }
}

/// A pattern for the names that begin with these letters.
fn pattern(beginning: &str) -> String {
    let mut pattern = String::new();
    for letter in beginning.chars() {
        if "*?[]^\\".contains(letter) {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern + "*"
}

/// Whether a shell reads it as one plain word. Any user of the server can have chosen the name.
fn can_be_typed(name: &str) -> bool {
    let is_plain = |letter: char| letter.is_alphanumeric() || "_-.:/@+%,=".contains(letter);
    !name.starts_with('-') && name.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_no_pattern() {
        assert_eq!(pattern(""), "*");
        assert_eq!(pattern("a[1]*"), "a\\[1\\]\\**");
    }

    #[test]
    fn names_that_a_shell_would_run_are_not_offered() {
        assert!(can_be_typed("order:7") && can_be_typed("größe/a.b-c"));
        for name in ["a b", "$(x)", "`x`", "a;b", "a\nb", "'", "-x", "{a}", "a*"] {
            assert!(!can_be_typed(name), "{name}");
        }
    }
}
