//! The holder of a lock that a caller cannot have: in words, and as JSON.

use std::sync::Arc;
use std::time::Duration;

use lockset::{Client, Holder};
use lockset_operator::{ClientInfo, LockHolder, Survey};
use serde::Serialize;

use crate::facts::{ClientFact, who};
use crate::found::{Form, find};
use crate::output::{quoted, shown};
use crate::span;

/// One holder of a lock.
#[derive(Debug)]
pub(crate) struct Blocker {
    form: Form,
    pub(crate) name: String,
    pub(crate) id: String,
    hold_count: u32,
    remaining: Duration,
    held_for: Option<Duration>,
    client: Option<Arc<ClientInfo>>,
}

/// The fields of a blocker in a JSON object.
#[derive(Default, Serialize)]
pub(crate) struct BlockerFact<'a> {
    holder: Option<&'a str>,
    remaining_ms: Option<u128>,
    held_ms: Option<u128>,
    #[serde(flatten)]
    client: ClientFact<'a>,
}

impl<'a> From<&'a Blocker> for BlockerFact<'a> {
    fn from(blocker: &'a Blocker) -> Self {
        Self {
            holder: Some(&blocker.id),
            remaining_ms: Some(blocker.remaining.as_millis()),
            held_ms: blocker.held_for.map(|span| span.as_millis()),
            client: ClientFact::of(blocker.client.as_deref()),
        }
    }
}

impl Blocker {
    /// The holder of the first of these locks that is held. The answer serves a message only, so failures count
    /// as no holder.
    pub(crate) async fn of(client: &Client, names: impl Iterator<Item = &str>) -> Option<Self> {
        for name in names {
            let Ok(found) = find(client, name).await else {
                continue;
            };
            let Some(holder) = found.holders.first() else {
                continue;
            };
            let known = known(client, name).await;
            return Some(Self::new(name, found.form, holder, &known));
        }
        None
    }

    /// A holder, and the description of it among those that are known.
    pub(crate) fn new(name: &str, form: Form, holder: &Holder, known: &[LockHolder]) -> Self {
        let known = known.iter().find(|known| known.id == holder.id);
        Self {
            form,
            name: name.to_owned(),
            id: holder.id.clone(),
            hold_count: holder.hold_count,
            remaining: holder.remaining,
            held_for: known.and_then(|known| known.held_for),
            client: known.and_then(|known| known.client.clone()),
        }
    }

    /// `held by vm 26538 (./deploy.sh) for 18.0s`.
    pub(crate) fn brief(&self) -> String {
        let who = who(&self.id, self.client.as_deref());
        match self.held_for {
            Some(held) => format!("held by {who} for {}", span::show(held)),
            None => format!("held by {who}"),
        }
    }

    /// The whole sentence, with the holder id that `release` needs.
    pub(crate) fn sentence(&self) -> String {
        let count = match self.hold_count {
            1 => String::new(),
            count => format!(", {count} times"),
        };
        format!(
            "{} {} is {}{count}; holder {}, {} left unless renewed",
            self.form.what(),
            quoted(&self.name),
            self.brief(),
            shown(&self.id),
            span::show(self.remaining)
        )
    }
}

/// The holders of a lock with their clients; empty for a user without the rights of an operator.
pub(crate) async fn known(client: &Client, name: &str) -> Vec<LockHolder> {
    let detail = Survey::new(client).inspect(name).await.ok().flatten();
    detail.map(|detail| detail.lock.holders).unwrap_or_default()
}
