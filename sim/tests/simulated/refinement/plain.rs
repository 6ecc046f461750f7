//! Reentrant locks, taken and released by script or by plain commands: the holder, and the answer to the caller that it
//! holds the lock, or that its hold was renewed.

use lockset_model::lock::{Bounds, Holder, Reply, Request, Rules, Server};

use super::{Line, Numbers, state_of};

/// Why a line is no step of the model.
pub(super) fn refused(line: &Line<'_>) -> Option<String> {
    let holder_of = |shown| (shown != "-").then_some(shown);
    let (before, after) = (holder_of(line.before), holder_of(line.after));
    let known = Numbers::of([line.holder].into_iter().chain(before));
    let number = |one: &str| Holder {
        client: known.of_name(one),
        number: 0,
    };
    let server = Server {
        holder: before.map(number),
        left: u8::from(before.is_some()),
        ..Server::default()
    };
    let mut state = state_of(server, known.len());
    let bounds = Bounds {
        lease: 1,
        is_fenced: false,
        ..Bounds::SMALL
    };
    let me = number(line.holder);
    let request = match line.step {
        "plain_acquire" => Request::Acquire(me),
        "plain_release" => Request::Release(me),
        "plain_renew" => Request::Renew(me),
        other => panic!("no step of a reentrant lock: {other}"),
    };
    let reply = state.execute(&bounds, &Rules::ALL, request);
    let is_granted = matches!(reply, Reply::Granted(..) | Reply::Renewed(_, true));
    let name = |holder: Holder| known.name(holder.client);
    let model = (state.server.holder.map(name), is_granted);
    (model != (after, line.is_granted)).then(|| format!("{line:#?}\nthe model: {model:?}"))
}
