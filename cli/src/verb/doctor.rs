//! `doctor`: connects as a program would, and reports problems.

mod check;
mod checks;
mod sentinels;

use clap::Args;
use lockset_operator::Survey;

use self::check::{Check, Verdict};
use crate::connect::Context;
use crate::failure::{Failure, Outcome};
use crate::output::{Output, Style};
use crate::status;

/// Check a server for the needs of locks: version, memory, persistence, replicas, clock, distance, rights.
///
/// It connects as a program would and changes nothing. It prints one line for each check: ok, warn or fail, the
/// finding, and advice. The status is 1 if a check fails.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  lockset doctor\n  lockset doctor --names 'order:7,stock:{7}' --json"
)]
pub(crate) struct Doctor {
    /// Names that are locked together: says whether one server can grant them in one round trip.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    names: Vec<String>,
    /// The status is 1 for warnings too.
    #[arg(long)]
    strict: bool,
}

impl Doctor {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let mut worst = Verdict::Ok;
        let mut tell = |check: Check| {
            worst = worst.max(check.verdict);
            print(&context.output, &check)
        };
        let (urls, mut away) = (context.urls()?, Vec::new());
        for url in urls {
            if let Err(failure) = self.check(context, url, &mut tell).await? {
                away.push(failure);
            }
        }
        // A minority of several servers may be away.
        if away.len() == urls.len()
            && let Some(failure) = away.pop()
        {
            // Its message was printed as a check.
            return Ok(failure.status());
        }
        let bound = if self.strict {
            Verdict::Warn
        } else {
            Verdict::Fail
        };
        Ok(if worst >= bound {
            status::NO
        } else {
            status::OK
        })
    }

    /// Checks the servers of one URL. The inner failure is a missing connection, which was printed as a check.
    async fn check(
        &self,
        context: &Context,
        url: &str,
        tell: &mut impl FnMut(Check) -> Result<(), Failure>,
    ) -> Result<Result<(), Failure>, Failure> {
        let client = context.client_of(url).await;
        if !client.as_ref().is_err_and(Failure::is_usage) {
            for check in sentinels::checks(url, context).await? {
                tell(check)?;
            }
        }
        let client = match client {
            Ok(client) => client,
            Err(failure) => {
                let advice = "what else there is to check needs a connection";
                let found = failure.to_string();
                tell(Check::wrong("connect", Verdict::Fail, found, advice))?;
                if failure.is_without_rights() {
                    told_without_rights(context, url, tell).await?;
                }
                return Ok(Err(failure));
            }
        };
        let is_cluster = url.to_ascii_lowercase().contains("+cluster://");
        let survey = Survey::new(&client);
        for report in survey.servers().await? {
            if let Some(failure) = &report.failure {
                let (found, advice) =
                    (failure.to_string(), "no lock in its slots can be taken now");
                let check = Check::wrong("connect", Verdict::Fail, found, advice);
                tell(check.at(&report.address))?;
                continue;
            }
            tell(Check::ok("connect", "reached").at(&report.address))?;
            for check in checks::of(&report, is_cluster) {
                tell(check.at(&report.address))?;
            }
        }
        if !self.names.is_empty() {
            let names = self.names.iter();
            let places: Result<Vec<_>, _> = names.map(|name| survey.place(name)).collect();
            tell(checks::slots(&self.names, &places?, is_cluster))?;
        }
        client.shutdown().await?;
        Ok(Ok(()))
    }
}

/// The missing rights of a user who may not connect as programs do.
async fn told_without_rights(
    context: &Context,
    url: &str,
    tell: &mut impl FnMut(Check) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let Ok(client) = context.lazy_client_of(url).await else {
        return Ok(());
    };
    for report in Survey::new(&client).servers().await.unwrap_or_default() {
        if report.failure.is_some() {
            continue;
        }
        for check in checks::rights(&report) {
            tell(check.at(&report.address))?;
        }
    }
    Ok(())
}

fn print(output: &Output, check: &Check) -> Result<(), Failure> {
    output
        .say(check, || {
            let (word, style) = match check.verdict {
                Verdict::Ok => ("ok  ", Style::Green),
                Verdict::Warn => ("warn", Style::Yellow),
                Verdict::Fail => ("fail", Style::Red),
            };
            let (word, name) = (output.paint(style, word), check.check);
            let server = if check.server.is_empty() {
                String::new()
            } else {
                format!("{}: ", check.server)
            };
            let mut line = format!("{word}  {name:<11}  {server}{}", check.found);
            if let Some(advice) = &check.advice {
                line = format!("{line}\n                   {advice}");
            }
            line
        })
        .map(drop)
}
