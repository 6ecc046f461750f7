//! Tests of the wire over a stream whose other end is the test.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufWriter, DuplexStream, ReadBuf};

use super::*;
use crate::conn::link::wire::SharedTick;
use crate::conn::push::PushState;
use crate::engine::clock::Clock;

const SILENCE: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(20);

fn terms(silence: Duration) -> WireParams {
    WireParams {
        clock: Clock::System,
        protocol: ProtocolVersion::RESP3,
        silence,
        last_reply: SharedTick::default(),
        push: Arc::new(PushState::new(None)),
    }
}

struct Fixture {
    wire: Wire,
    server: DuplexStream,
    driver: tokio::task::JoinHandle<()>,
}

impl Fixture {
    fn new() -> Self {
        let (ours, server) = tokio::io::duplex(1 << 20);
        let (wire, driver) = Wire::new(ours, terms(SILENCE));
        Self {
            wire,
            server,
            driver: tokio::spawn(driver),
        }
    }

    async fn ask(&self, word: &str, limit: Duration) -> Option<Result<Vec<Value>, RedisError>> {
        let command = redis::cmd(word);
        let commands = [&command];
        let replies = self.wire.send(&[], &commands, limit).await;
        replies.map(|replies| replies.map(Replies::into_vec))
    }

    async fn receives(&mut self, words: &[&str]) {
        for word in words {
            let expected = redis::cmd(word).get_packed_command();
            let mut read = vec![0; expected.len()];
            self.server.read_exact(&mut read).await.unwrap();
            assert_eq!(read, expected);
        }
    }

    async fn says(&mut self, bytes: &[u8]) {
        self.server.write_all(bytes).await.unwrap();
    }
}

fn poll_once<F: Future + Unpin>(future: &mut F) {
    let mut context = Context::from_waker(Waker::noop());
    assert!(future.poll_unpin(&mut context).is_pending());
}

fn int(number: i64) -> Vec<Value> {
    vec![Value::Int(number)]
}

#[tokio::test]
async fn replies_come_in_the_order_of_the_commands() {
    let mut fixture = Fixture::new();
    let server = async {
        let mut read = vec![0; 4096];
        let _ = fixture.server.read(&mut read).await.unwrap();
        for part in [":1\r", "\n:2\r\n$1", "\r\nx\r\n"] {
            fixture.server.write_all(part.as_bytes()).await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    let command = redis::cmd("PING");
    let ask = |limit| {
        let one = [&command];
        fixture.wire.send(&[], &one, limit)
    };
    let (a, b, c, ()) = tokio::join!(ask(SILENCE), ask(LONG), ask(SILENCE), server);
    assert_eq!(a.unwrap().unwrap().into_vec(), int(1));
    assert_eq!(b.unwrap().unwrap().into_vec(), int(2));
    let said = Value::BulkString(b"x".to_vec());
    assert_eq!(c.unwrap().unwrap().into_vec(), [said]);
    assert!(fixture.wire.params.last_reply.get() > Tick::ZERO);
}

#[tokio::test]
async fn the_reply_to_one_who_left_is_given_to_nobody() {
    let mut fixture = Fixture::new();
    {
        let mut left = pin!(fixture.ask("A", SILENCE));
        poll_once(&mut left);
    }
    // Its place in the table is not reused before it is answered.
    let wire = &fixture.wire;
    let command = redis::cmd("B");
    let one = [&command];
    let mut waits = pin!(wire.send(&[], &one, LONG));
    poll_once(&mut waits);
    let (a, b) = (redis::cmd("A"), redis::cmd("B"));
    let mut read = vec![0; a.get_packed_command().len() + b.get_packed_command().len()];
    fixture.server.read_exact(&mut read).await.unwrap();
    fixture.server.write_all(b":1\r\n:2\r\n").await.unwrap();
    assert_eq!(waits.await.unwrap().unwrap().into_vec(), int(2));
}

#[tokio::test]
async fn two_commands_of_one_request_are_answered_together() {
    let fixture = Fixture::new();
    let Fixture {
        wire, mut server, ..
    } = fixture;
    let commands = [redis::cmd("A"), redis::cmd("B")];
    let mut waits = pin!(wire.send(&[], &commands.each_ref(), SILENCE));
    poll_once(&mut waits);
    server.write_all(b":1\r\n-ERR no\r\n").await.unwrap();
    let replies = waits.await.unwrap().unwrap().into_vec();
    assert_eq!(replies[0], Value::Int(1));
    assert!(matches!(replies[1], Value::ServerError(_)));
}

#[tokio::test]
async fn silence_is_told_to_those_who_had_their_time_and_the_rest_goes_on() {
    let mut fixture = Fixture::new();
    let asked = std::time::Instant::now();
    assert!(fixture.ask("A", SILENCE).await.is_none());
    assert!(asked.elapsed() >= SILENCE);
    fixture.receives(&["A"]).await;
    // A late answer does not go to the next caller.
    fixture.says(b":1\r\n:2\r\n").await;
    assert_eq!(fixture.ask("B", SILENCE).await.unwrap().unwrap(), int(2));
    // Once more, with a timer that has already fired.
    assert!(fixture.ask("C", SILENCE).await.is_none());
}

#[tokio::test]
async fn a_caller_with_less_time_has_a_timer_of_its_own() {
    let fixture = Fixture::new();
    let asked = std::time::Instant::now();
    assert!(fixture.ask("A", SILENCE / 8).await.is_none());
    assert!(asked.elapsed() < SILENCE);
}

#[test]
fn a_caller_on_another_runtime_needs_no_driver_to_see_that_there_is_no_answer() {
    let theirs = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let fixture = {
        let _entered = theirs.enter();
        Fixture::new()
    };
    // The driver's runtime stands still.
    let ours = runtime::Runtime::new().unwrap();
    assert!(ours.block_on(fixture.ask("A", SILENCE)).is_none());
}

#[tokio::test]
async fn the_end_of_a_connection_is_told_to_all() {
    for said in [
        &b""[..],
        b":1\r\n:",
        b"HTTP/1.1 400\r\n",
        b":1\r\n:2\r\n:3\r\n",
    ] {
        let Fixture {
            wire,
            mut server,
            driver,
            ..
        } = Fixture::new();
        let command = redis::cmd("A");
        let ask = || wire.send(&[], &[&command], LONG);
        let end = async {
            let mut read = vec![0; 4096];
            let _ = server.read(&mut read).await.unwrap();
            server.write_all(said).await.unwrap();
            drop(server);
        };
        let (_, second, ()) = tokio::join!(ask(), ask(), end);
        if !said.ends_with(b":3\r\n") {
            assert!(second.expect("the caller is woken").is_err(), "{said:?}");
        }
        driver.await.unwrap();
        assert!(ask().await.expect("at once").is_err());
    }
}

#[tokio::test]
async fn without_its_driver_nobody_waits() {
    let fixture = Fixture::new();
    let abort = fixture.driver.abort_handle();
    let end = async {
        tokio::task::yield_now().await;
        abort.abort();
    };
    let (answer, ()) = tokio::join!(fixture.ask("A", LONG), end);
    let error = answer.expect("the caller is woken").unwrap_err();
    assert!(error.is_connection_dropped(), "{error}");
}

#[tokio::test]
async fn of_many_each_gets_its_own_answer() {
    const TASKS: usize = 200;
    const TURNS: usize = 50;
    let (ours, mut server) = tokio::io::duplex(1000);
    let (wire, driver) = Wire::new(ours, terms(LONG));
    tokio::spawn(driver);
    // Answers each `ECHO n` with n.
    let echo = tokio::spawn(async move {
        let mut pending = Vec::new();
        let mut space = [0; 700];
        loop {
            let count = server.read(&mut space).await?;
            if count == 0 {
                return io::Result::Ok(());
            }
            pending.extend_from_slice(&space[..count]);
            while let Ok(Some((Value::Array(words), length))) =
                decode::Decoder::new(ProtocolVersion::RESP2).first(&pending)
            {
                pending.drain(..length);
                let Value::BulkString(word) = &words[1] else {
                    panic!("{words:?}")
                };
                let reply = format!(":{}\r\n", String::from_utf8_lossy(word));
                server.write_all(reply.as_bytes()).await?;
            }
        }
    });
    let wire = Arc::new(wire);
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let wire = Arc::clone(&wire);
            tokio::spawn(async move {
                for turn in 0..TURNS {
                    let number = task * TURNS + turn;
                    let mut echo = redis::cmd("ECHO");
                    echo.arg(number);
                    let one = [&echo];
                    let mut asking = pin!(wire.send(&[], &one, LONG));
                    if number.is_multiple_of(7) {
                        // This caller leaves.
                        poll_once(&mut asking);
                        continue;
                    }
                    let answer = asking.await.unwrap().unwrap().into_vec();
                    assert_eq!(answer, int(number as i64));
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    drop(wire);
    echo.abort();
}

fn subscribe(verb: &str, channel: &str) -> Cmd {
    let mut command = redis::cmd(verb);
    command.arg(channel);
    command
}

fn pushed(kind: &str, channel: &str) -> String {
    let (kind_size, size) = (kind.len(), channel.len());
    format!(">3\r\n${kind_size}\r\n{kind}\r\n${size}\r\n{channel}\r\n:1\r\n")
}

#[tokio::test]
async fn a_push_confirms_its_own_command_alone() {
    for (verb, kind) in [
        ("SUBSCRIBE", "subscribe"),
        ("UNSUBSCRIBE", "unsubscribe"),
        ("SSUBSCRIBE", "ssubscribe"),
        ("SUNSUBSCRIBE", "sunsubscribe"),
    ] {
        let Fixture {
            wire, mut server, ..
        } = Fixture::new();
        let commands = [redis::cmd("A"), subscribe(verb, "a")];
        let mut waits = pin!(wire.send(&[], &commands.each_ref(), LONG));
        poll_once(&mut waits);
        // A message, the end of another subscription, and a confirmation that comes before the first reply.
        let other = [
            pushed("message", "a"),
            pushed("unsubscribe", "b"),
            pushed("unsubscribe", "a"),
        ];
        server.write_all(other.concat().as_bytes()).await.unwrap();
        server.write_all(b":1\r\n").await.unwrap();
        server
            .write_all(pushed("message", "a").as_bytes())
            .await
            .unwrap();
        tokio::task::yield_now().await;
        poll_once(&mut waits);
        server
            .write_all(pushed(kind, "a").as_bytes())
            .await
            .unwrap();
        let replies = waits.await.unwrap().unwrap().into_vec();
        assert_eq!(replies, [Value::Int(1), Value::Okay], "{verb}");
    }
}

#[tokio::test]
async fn a_late_confirmation_is_not_taken_for_another() {
    let Fixture {
        wire, mut server, ..
    } = Fixture::new();
    let (first, second) = (
        [subscribe("SSUBSCRIBE", "a")],
        [subscribe("SUNSUBSCRIBE", "a")],
    );
    {
        let mut left = pin!(wire.send(&[], &first.each_ref(), LONG));
        poll_once(&mut left);
    }
    let mut waits = pin!(wire.send(&[], &second.each_ref(), LONG));
    poll_once(&mut waits);
    server
        .write_all(pushed("ssubscribe", "a").as_bytes())
        .await
        .unwrap();
    tokio::task::yield_now().await;
    poll_once(&mut waits);
    server
        .write_all(pushed("sunsubscribe", "a").as_bytes())
        .await
        .unwrap();
    assert_eq!(waits.await.unwrap().unwrap().into_vec(), [Value::Okay]);
}

#[tokio::test]
async fn a_subscription_is_answered_by_its_push_or_an_error() {
    for (said, is_reply) in [
        ("-NOPERM no\r\n", true),
        ("+OK\r\n", false),
        (":1\r\n", false),
    ] {
        let Fixture {
            wire, mut server, ..
        } = Fixture::new();
        let commands = [subscribe("SUBSCRIBE", "a")];
        let mut waits = pin!(wire.send(&[], &commands.each_ref(), LONG));
        poll_once(&mut waits);
        server.write_all(said.as_bytes()).await.unwrap();
        assert_eq!(waits.await.unwrap().is_ok(), is_reply, "{said}");
    }
}

#[tokio::test]
async fn subscriptions_that_nobody_asked_for_end_the_connection() {
    let mut fixture = Fixture::new();
    fixture.says(pushed("subscribe", "a").as_bytes()).await;
    fixture.driver.await.unwrap();
}

#[tokio::test]
async fn the_reason_that_came_before_a_failed_write_is_read() {
    let (ours, mut server) = tokio::io::duplex(64);
    server.write_all(b"-ERR no\r\n").await.unwrap();
    drop(server);
    let (wire, driver) = Wire::new(ours, terms(LONG));
    let driver = tokio::spawn(driver);
    let ping = [redis::cmd("PING")];
    let answer = wire.ask(&ping, LONG).await;
    let said = answer.map(|replies| replies.into_iter().next().unwrap());
    let error = said.and_then(Value::extract_error).unwrap_err();
    assert_eq!(error.code(), Some("ERR"));
    driver.await.unwrap();
}

/// A server that refuses a connection may say so before the first command is there.
#[tokio::test]
async fn an_error_without_a_command_is_why_the_connection_ended() {
    // About as long as the line of Redis's protected mode.
    let denied = format!(
        "-DENIED Redis is running in protected mode. {}",
        "x".repeat(1030)
    );
    for (line, code) in [
        ("-ERR max number of clients reached", "ERR"),
        (&denied, "DENIED"),
    ] {
        let mut fixture = Fixture::new();
        fixture.says(format!("{line}\r\n").as_bytes()).await;
        fixture.driver.await.unwrap();
        let ping = [redis::cmd("PING")];
        let error = fixture.wire.ask(&ping, LONG).await.unwrap_err();
        assert_eq!(error.code(), Some(code));
        assert_eq!(error.detail(), line.split_once(' ').map(|(_, words)| words));
    }
}

/// A server that answers each read in one write, and counts the writes of the client.
async fn serve(mut server: DuplexStream) -> (Vec<usize>, usize) {
    let (mut space, mut unread) = (vec![0; 1 << 16], Vec::new());
    let (mut executed, mut reads) = (Vec::new(), 0);
    let mut commands = decode::Decoder::new(ProtocolVersion::RESP2);
    loop {
        let read = server.read(&mut space).await.unwrap();
        if read == 0 {
            return (executed, reads);
        }
        reads += 1;
        unread.extend_from_slice(&space[..read]);
        let mut replies = Vec::new();
        while let Some((Value::Array(words), length)) = commands.first(&unread).unwrap() {
            unread.drain(..length);
            let Value::BulkString(number) = &words[1] else {
                panic!("{words:?}")
            };
            let number = std::str::from_utf8(number).unwrap();
            replies.extend_from_slice(format!(":{number}\r\n").as_bytes());
            executed.push(number.parse().unwrap());
        }
        server.write_all(&replies).await.unwrap();
    }
}

/// Lets this many tasks send this many commands each. Returns the commands in the order of their execution, and the
/// average number of commands in a write.
async fn exchanged(tasks: usize, times: usize) -> (Vec<usize>, f64) {
    let (ours, server) = tokio::io::duplex(1 << 20);
    let (wire, driver) = Wire::new(ours, terms(LONG));
    let driver = tokio::spawn(driver);
    let server = tokio::spawn(serve(server));
    let wire = Arc::new(wire);
    let asking = (0..tasks).map(|task| {
        let wire = Arc::clone(&wire);
        tokio::spawn(async move {
            for time in 0..times {
                let number = task * times + time;
                let mut echo = redis::cmd("ECHO");
                echo.arg(number);
                let reply = wire.ask(&[echo], LONG).await.unwrap();
                assert_eq!(reply, int(number as i64));
            }
        })
    });
    for task in asking.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    driver.abort();
    let (executed, writes) = server.await.unwrap();
    assert_eq!(executed.len(), tasks * times);
    (executed, (tasks * times) as f64 / writes as f64)
}

#[tokio::test]
async fn one_task_has_a_write_for_each_command() {
    assert_eq!(exchanged(1, 200).await.1, 1.0);
}

/// Without portions all of them would be in one write here, and the server would wait for it.
#[tokio::test]
async fn many_tasks_on_one_thread_share_writes_but_not_all_one() {
    let (_, in_a_write) = exchanged(64, 100).await;
    assert!((4.0..24.0).contains(&in_a_write), "{in_a_write}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_on_many_threads_share_writes() {
    let (_, in_a_write) = exchanged(64, 200).await;
    assert!(in_a_write >= 2.0, "{in_a_write}");
}

#[tokio::test]
async fn commands_are_executed_in_the_order_of_their_first_polls() {
    let (executed, _) = exchanged(500, 1).await;
    assert_eq!(executed, (0..500).collect::<Vec<_>>());
}

/// The task behind a connection goes on in another turn, so others have theirs.
#[tokio::test]
async fn a_server_that_never_stops_does_not_keep_the_thread() {
    let (ours, mut server) = tokio::io::duplex(1 << 20);
    let (_wire, driver) = Wire::new(ours, terms(LONG));
    let message = pushed("message", "a").repeat(10_000);
    server.write_all(message.as_bytes()).await.unwrap();
    let mut driver = pin!(driver);
    poll_once(&mut driver);
    // There is room again for what was read.
    let mut left = 0;
    while server.write(b"x").now_or_never().is_some() {
        left += 1;
    }
    let free = (1 << 20) - message.len();
    assert!(left < free + message.len() / 2, "{left} of {free}");
}

/// The other end says this without a pause, and takes everything.
struct Endless(Vec<u8>);

impl AsyncRead for Endless {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // One by one, so that a turn is short on a busy machine, too.
        space.put_slice(&self.0);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Endless {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The caller has no timer of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_without_end_are_no_reply_either() {
    let messages = Endless(pushed("message", "a").into_bytes());
    let (wire, driver) = Wire::new(messages, terms(SILENCE));
    let driver = tokio::spawn(driver);
    let ping = redis::cmd("PING");
    let asked = wire.ask(std::slice::from_ref(&ping), SILENCE);
    let asked = tokio::time::timeout(LONG, asked).await;
    driver.abort();
    let silent = asked.expect("its time ends").unwrap_err();
    assert!(silent.is_timeout(), "{silent}");
}

/// A stream over TLS keeps what its socket does not take at once.
#[tokio::test]
async fn what_a_stream_keeps_is_sent_without_another_command() {
    let (ours, mut server) = tokio::io::duplex(1 << 20);
    let (wire, driver) = Wire::new(BufWriter::new(ours), terms(LONG * 2));
    tokio::spawn(driver);
    let ping = [redis::cmd("PING")];
    let mut asked = pin!(wire.ask(&ping, LONG * 2));
    assert!(asked.as_mut().now_or_never().is_none());
    let mut space = [0; 64];
    let read = tokio::time::timeout(LONG, server.read(&mut space)).await;
    assert!(read.expect("it arrives").unwrap() > 0);
    server.write_all(b"+OK\r\n").await.unwrap();
    assert_eq!(asked.await.unwrap(), [Value::Okay]);
}

fn assert_same(command: &Cmd) {
    let mut bytes = b"before".to_vec();
    encode(command, &mut bytes);
    assert_eq!(bytes[6..], command.get_packed_command());
}

proptest! {
    #[test]
    fn every_command_reads_as_the_client_library_writes_it(
        words in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..120), 1..14)
    ) {
        let mut command = Cmd::new();
        command.arg(words);
        assert_same(&command);
    }
}

#[test]
fn so_do_scans_and_large_ones() {
    assert_same(
        redis::cmd("EVAL")
            .arg(vec![b'x'; 12_345])
            .arg(vec!["k"; 300]),
    );
}
