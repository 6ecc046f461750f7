//! Read-write locks: who writes, who reads and is alive, who waits for what, and what the caller was told; after a
//! writer also whether a free lock is kept for readers.

use lockset_model::rwlock::{Holder, Mode, Reader, Reply, Request, Rules, Server, Terms, Waiter};

use super::{Line, Numbers};

/// A lock as the server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Lock<'a> {
    writer: Option<&'a str>,
    /// With whether their leases still run.
    readers: Vec<(&'a str, bool)>,
    waiting: Vec<(&'a str, Mode)>,
    is_readers_turn: bool,
}

impl<'a> Lock<'a> {
    fn read(shown: &'a str) -> Self {
        let parts: Vec<&str> = shown.split('#').collect();
        let [writer, readers, waiting, turn] = parts[..] else {
            panic!("{shown}");
        };
        let readers = readers.split_terminator(',').map(|one| {
            let alive = one.strip_suffix('!');
            (alive.unwrap_or(one), alive.is_none())
        });
        let waiting = waiting.split_terminator(',').map(|one| {
            let (kind, who) = one.split_at(1);
            let mode = if kind == "r" { Mode::Read } else { Mode::Write };
            (who, mode)
        });
        Self {
            writer: (writer != "-").then_some(writer),
            readers: readers.collect(),
            waiting: waiting.collect(),
            is_readers_turn: turn == "turn",
        }
    }

    /// Without the order of unordered waiters, and without dead readers, which may be there or not.
    fn seen(mut self) -> Self {
        self.readers.retain(|(_, is_alive)| *is_alive);
        self.readers.sort_unstable();
        self.waiting.sort_unstable();
        self
    }
}

fn request(line: &Line<'_>, me: Holder) -> Request {
    match line.step {
        "rw_read" => Request::Acquire(me, Mode::Read),
        "rw_write" => Request::Acquire(me, Mode::Write),
        "rw_downgrade" => Request::Downgrade(me),
        "rw_release" => Request::Release(me),
        "rw_renew" => Request::Renew(me),
        other => panic!("no step of a read-write lock: {other}"),
    }
}

/// Returns the model's result, and whether it grants the caller its request.
fn by_model<'a>(line: &Line<'a>, before: &Lock<'a>) -> (Lock<'a>, bool) {
    let readers = before.readers.iter().map(|(one, _)| *one);
    let waiting = before.waiting.iter().map(|(one, _)| *one);
    let all = [line.holder].into_iter().chain(before.writer);
    let known = Numbers::of(all.chain(readers).chain(waiting));
    let number = |one: &str| Holder {
        client: known.of_name(one),
        number: 0,
    };
    let saw_writer_end = line.detail.ends_with('+');
    let waiter = |(who, mode): &(&str, Mode)| Waiter {
        holder: number(who),
        mode: *mode,
        left: 1,
        saw_writer_end: saw_writer_end && *who == line.holder,
    };
    let readers = before.readers.iter().map(|(who, is_alive)| Reader {
        holder: number(who),
        left: u8::from(*is_alive),
    });
    let mut server = Server {
        writer: before.writer.map(number),
        readers: readers.collect(),
        left: 1,
        waiting: before.waiting.iter().map(waiter).collect(),
        is_readers_turn: before.is_readers_turn,
    };
    let me = number(line.holder);
    let is_noted = before.waiting.iter().any(|(who, _)| *who == line.holder);
    let is_reported = saw_writer_end && !is_noted;
    if is_reported {
        // It has waited in its client, and the call reports that to the server.
        server.waiting.push(waiter(&(line.holder, Mode::Read)));
    }
    let terms = Terms {
        lease: 1,
        heartbeat: u8::from(!line.detail.starts_with('0')),
    };
    let reply = server.execute(terms, &Rules::ALL, request(line, me));
    if is_reported && terms.heartbeat == 0 {
        // The report was for this call: the server notes none that asks without a heartbeat.
        server.waiting.retain(|waiter| waiter.holder != me);
    }
    let name = |holder: Holder| known.name(holder.client);
    let alive = server.waiting.iter().filter(|waiter| waiter.left > 0);
    let readers = server.readers.iter();
    let after = Lock {
        writer: server.writer.map(name),
        readers: readers
            .map(|reader| (name(reader.holder), reader.left > 0))
            .collect(),
        waiting: alive
            .map(|waiter| (name(waiter.holder), waiter.mode))
            .collect(),
        is_readers_turn: server.is_readers_turn,
    };
    let is_granted = matches!(
        reply,
        Reply::Granted(_) | Reply::Renewed(_, true) | Reply::Downgraded(_, true)
    );
    (after, is_granted)
}

/// Why a line is no step of the model.
pub(super) fn refused(line: &Line<'_>) -> Option<String> {
    let before = Lock::read(line.before);
    let (model, is_granted) = by_model(line, &before);
    let is_after_writer = line.step == "rw_downgrade" && is_granted
        || line.step == "rw_release" && before.writer == Some(line.holder);
    let seen = |mut lock: Lock<'_>| {
        lock.is_readers_turn &= is_after_writer;
        format!("{:?}", lock.seen())
    };
    let [after, allowed] = [Lock::read(line.after), model].map(seen);
    let is_same = after == allowed && is_granted == line.is_granted;
    (!is_same).then(|| format!("{line:#?}\nthe model: {allowed} {is_granted}"))
}
