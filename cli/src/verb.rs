//! The verbs, one file each.

mod doctor;
mod free;
mod generate;
mod list;
mod man;
mod names;
mod once;
mod purge;
mod release;
mod run;
mod show;
mod tokens;
mod top;
mod wait;

use clap::{Command, Subcommand};

use crate::connect::Context;
use crate::failure::Outcome;

/// The verb of a call.
#[derive(Subcommand)]
pub(crate) enum Verb {
    Run(run::Run),
    Once(once::Once),
    Doctor(doctor::Doctor),
    List(list::List),
    Show(show::Show),
    Top(top::Top),
    Release(release::Release),
    Free(free::Free),
    Tokens(tokens::Tokens),
    Purge(purge::Purge),
    Wait(wait::Wait),
    Completions(generate::Completions),
    #[command(hide = true)]
    Names(names::Names),
    #[command(hide = true)]
    Man(man::Man),
}

impl Verb {
    /// `program` is the description of all arguments.
    pub(crate) async fn run(self, context: &Context, program: fn() -> Command) -> Outcome {
        match self {
            Self::Run(run) => run.run(context).await,
            Self::Once(once) => once.run(context).await,
            Self::Doctor(doctor) => doctor.run(context).await,
            Self::List(list) => list.run(context).await,
            Self::Show(show) => show.run(context).await,
            Self::Top(top) => top.run(context).await,
            Self::Release(release) => release.run(context).await,
            Self::Free(free) => free.run(context).await,
            Self::Tokens(tokens) => tokens.run(context).await,
            Self::Purge(purge) => purge.run(context).await,
            Self::Wait(wait) => wait.run(context).await,
            Self::Completions(completions) => completions.run(program),
            Self::Names(names) => names.run(context).await,
            Self::Man(man) => man.run(context, program),
        }
    }
}
