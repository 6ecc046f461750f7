//! `doctor`: connects as a program would, and says what is wrong.

mod check;
mod checks;
mod sentinels;

use clap::Args;

use self::check::{Check, Verdict};
use crate::connect::Context;
use crate::failure::{Failure, Outcome};
use crate::output::{Output, Style};
use crate::status;

/// Check what locks need of a server: version, memory, persistence, replicas, clock, distance, rights.
///
/// It connects as a program would and changes nothing. One line for each check: ok, warn or fail, what was
/// found, and what to do. The status is 1 if one fails.
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
        let url = context.url()?;
        for check in sentinels::checks(url, context.connect_timeout()).await {
            tell(check)?;
        }
        let client = match context.client().await {
            Ok(client) => client,
            Err(failure) => {
                let advice = "what else there is to check needs a connection";
                tell(Check::wrong(
                    "connect",
                    Verdict::Fail,
                    failure.to_string(),
                    advice,
                ))?;
                return Err(failure);
            }
        };
        let survey = client.survey();
        let is_cluster = url.contains("+cluster://");
        for report in survey.servers().await? {
            tell(Check::ok("connect", "reached").at(&report.address))?;
            for check in checks::of(&report, is_cluster) {
                tell(check.at(&report.address))?;
            }
        }
        if !self.names.is_empty() {
            let places: Result<Vec<_>, _> =
                self.names.iter().map(|name| survey.place(name)).collect();
            tell(checks::slots(&self.names, &places?, is_cluster))?;
        }
        client.shutdown().await?;
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
}

fn print(output: &Output, check: &Check) -> Result<(), Failure> {
    output.say(check, || {
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
}
