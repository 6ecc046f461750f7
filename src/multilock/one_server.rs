//! Members of one name that are one lock, because two clients reach one server by two addresses.
//!
//! A multi-lock of such members would wait for itself. A client knows the process of a server once it has connected.

use futures_util::future::join_all;

use crate::api::error::{Error, Result};
use crate::api::handle::Handle;
use crate::conn::{Lane, Transport};
use crate::engine::clock::Tick;

/// Whether some members have one name and database, but addresses that differ. `members` are in the order of their keys.
pub(super) fn has_twins(members: &[Handle]) -> bool {
    twins(members).next().is_some()
}

/// Checks that no two members are one lock, as far as the clients know their servers.
pub(super) fn check(members: &[Handle], operation: &'static str) -> Result<()> {
    for [one, other] in twins(members) {
        let [a, b] = [one, other].map(|twin| transport(twin).process(Lane::Command, key(twin)));
        if a.zip(b).is_some_and(|(a, b)| a.is_same_run(&b)) {
            let message = format!(
                "it is a member twice: {} and {} are one server; list it once",
                transport(one).address(),
                transport(other).address(),
            );
            return Err(Error::invalid(operation, message).of_lock(one.given_name()));
        }
    }
    Ok(())
}

/// Checks the members again after their clients have connected. A server that does not answer is left to the attempt.
pub(super) async fn check_connected(members: &[Handle], operation: &'static str) -> Result<()> {
    let mut probe = redis::cmd("EVAL");
    probe.arg("return 1").arg(0);
    let is_unknown =
        |twin: &&Handle| transport(twin).last_reply_at(Lane::Command, key(twin)) == Tick::ZERO;
    let unknown = twins(members).flatten().filter(is_unknown);
    let connected = unknown.map(|twin| {
        let limit = twin.core().timing.reply;
        transport(twin).send(Lane::Command, key(twin), &probe, limit)
    });
    join_all(connected).await;
    check(members, operation)
}

fn twins(members: &[Handle]) -> impl Iterator<Item = [&Handle; 2]> {
    let each = members.iter().enumerate();
    each.flat_map(move |(at, one)| {
        let others = members[at + 1..].iter();
        let others = others.take_while(move |other| key(other) == key(one));
        let others = others.filter(move |other| database(other) == database(one));
        others.map(move |other| [one, other])
    })
}

fn key(member: &Handle) -> &str {
    member.name().map_or("", |name| &**name.key())
}

/// The number of the database, which ends an address. A cluster has no other than 0.
fn database(member: &Handle) -> &str {
    let address = transport(member).address();
    address.rsplit_once('/').map_or("0", |(_, number)| number)
}

fn transport(member: &Handle) -> &dyn Transport {
    &*member.core().scripts.transport
}
