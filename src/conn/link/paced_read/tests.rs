//! Tests of portions: their size, that the reader never stalls, and their effect on writes.

use std::future::poll_fn;
use std::sync::atomic::AtomicBool;
use std::task::Wake;

use futures_util::future::join_all;
use parking_lot::Mutex;
use proptest::prelude::*;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisConnectionInfo, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::*;

/// A bound that only a test that never ends exceeds.
const BOUND: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// The result of one `poll_read`.
#[derive(Debug, PartialEq, Eq)]
enum Read {
    Bytes(usize),
    Refused,
    Nothing,
}

struct Bench<S> {
    reader: PacedRead<S>,
    in_flight: Arc<InFlight>,
}

impl Bench<&'static [u8]> {
    fn of_many_bytes() -> Self {
        Self::over(&[b'x'; 4096])
    }
}

impl<S> Bench<S> {
    fn over(stream: S) -> Self {
        let in_flight = Arc::<InFlight>::default();
        let reader = PacedRead::new(stream, Arc::clone(&in_flight));
        Self { reader, in_flight }
    }
}

impl<S: AsyncRead + Unpin> Bench<S> {
    fn read(&mut self, room: usize) -> Read {
        let woken = Arc::<Woken>::default();
        let waker = Arc::clone(&woken).into();
        let mut context = Context::from_waker(&waker);
        let mut space = vec![0; room];
        let mut buffer = ReadBuf::new(&mut space);
        match Pin::new(&mut self.reader).poll_read(&mut context, &mut buffer) {
            Poll::Ready(done) => {
                done.unwrap();
                Read::Bytes(buffer.filled().len())
            }
            Poll::Pending if woken.0.load(Ordering::Acquire) => Read::Refused,
            Poll::Pending => Read::Nothing,
        }
    }
}

#[test]
fn few_commands_are_answered_all_at_once() {
    let mut bench = Bench::of_many_bytes();
    assert_eq!(bench.read(1000), Read::Bytes(1000));
    let in_flight = Arc::clone(&bench.in_flight);
    let _guard = in_flight.add(FEW - 1);
    bench.reader.end_turn();
    assert_eq!(bench.read(1000), Read::Bytes(1000));
    assert_eq!(bench.read(1000), Read::Bytes(1000), "in the same turn");
}

#[test]
fn many_commands_are_answered_in_portions() {
    let mut bench = Bench::of_many_bytes();
    let in_flight = Arc::clone(&bench.in_flight);
    let _guard = in_flight.add(64);
    for _ in 0..3 {
        assert_eq!(bench.read(30), Read::Bytes(30));
        assert_eq!(bench.read(1000), Read::Bytes(ENOUGH * REPLY_SIZE - 30));
        assert_eq!(bench.read(30), Read::Refused);
        assert_eq!(bench.read(30), Read::Refused);
        bench.reader.end_turn();
    }
}

#[test]
fn a_portion_is_a_part_of_what_is_under_way() {
    for (under_way, answers) in [
        (4, 1),
        (8, 2),
        (16, 4),
        (64, 16),
        (128, 16),
        (256, 32),
        (512, 64),
        (100_000, 64),
    ] {
        assert_eq!(portion_of(under_way), answers, "{under_way}");
    }
}

#[test]
fn where_one_thread_runs_all_fewer_need_portions() {
    for (threads, few) in [(1, FEW_ON_ONE_THREAD), (2, FEW)] {
        let runtime = match threads {
            1 => tokio::runtime::Builder::new_current_thread(),
            _ => tokio::runtime::Builder::new_multi_thread(),
        }
        .build()
        .unwrap();
        let bench = runtime.block_on(async { Bench::of_many_bytes() });
        assert_eq!(bench.reader.few, few);
    }
}

#[test]
fn a_turn_that_comes_late_takes_everything() {
    let mut bench = Bench::of_many_bytes();
    let in_flight = Arc::clone(&bench.in_flight);
    let _guard = in_flight.add(64);
    assert_eq!(bench.read(1000), Read::Bytes(ENOUGH * REPLY_SIZE));
    assert_eq!(bench.read(1000), Read::Refused);
    bench.reader.yielded_at = Instant::now().checked_sub(2 * LATE);
    assert!(bench.reader.yielded_at.is_some(), "the clock is past that");
    bench.reader.end_turn();
    assert_eq!(bench.read(1000), Read::Bytes(1000));
    assert_eq!(bench.read(1000), Read::Bytes(1000));
    bench.reader.end_turn();
    assert_eq!(bench.read(1000), Read::Bytes(ENOUGH * REPLY_SIZE), "once");
}

#[test]
fn the_size_of_answers_is_learned() {
    let mut bench = Bench::of_many_bytes();
    let in_flight = Arc::clone(&bench.in_flight);
    drop(in_flight.add(SAMPLE));
    assert_eq!(bench.read(SAMPLE * 30), Read::Bytes(SAMPLE * 30));
    let _guard = in_flight.add(64);
    bench.reader.end_turn();
    assert_eq!(bench.read(1000), Read::Bytes(ENOUGH * 30));
}

#[test]
fn who_gives_up_is_not_counted_any_more() {
    let in_flight = InFlight::default();
    let (one, two) = (in_flight.add(1), in_flight.add(7));
    assert_eq!(in_flight.count(), 8);
    drop(one);
    drop(two);
    assert_eq!(in_flight.count(), 0);
    assert_eq!(in_flight.done.load(Ordering::Relaxed), 8);
}

#[test]
fn a_socket_that_has_nothing_is_waited_for() {
    let (ours, _theirs) = tokio::io::duplex(64);
    let mut bench = Bench::over(ours);
    let in_flight = Arc::clone(&bench.in_flight);
    let _guard = in_flight.add(64);
    assert_eq!(bench.read(100), Read::Nothing);
}

/// Reads to the end as the client library does: everything available, then the writing side, then again after each
/// wake-up.
async fn read_in_turns(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    flushes: bool,
) -> Vec<u8> {
    let mut all = Vec::new();
    poll_fn(|context| {
        loop {
            let mut space = [0; 512];
            let mut buffer = ReadBuf::new(&mut space);
            match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
                Poll::Ready(done) => {
                    done.unwrap();
                    match buffer.filled() {
                        [] => return Poll::Ready(()),
                        some => all.extend_from_slice(some),
                    }
                }
                Poll::Pending => {
                    if flushes {
                        let _ = Pin::new(&mut *stream).poll_flush(context);
                    }
                    return Poll::Pending;
                }
            }
        }
    })
    .await;
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The reader polls only after a wake-up here, so a missing one makes the test hang.
    #[test]
    fn every_byte_comes_once_and_in_order(
        under_way in 0_usize..200,
        pieces in prop::collection::vec(1_usize..700, 0..20),
        flushes in any::<bool>(),
    ) {
        let bytes: Vec<u8> = (0..pieces.iter().sum::<usize>()).map(|at| at as u8).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let read = runtime.block_on(async {
            let (ours, mut theirs) = tokio::io::duplex(256);
            let in_flight = Arc::<InFlight>::default();
            let _guard = in_flight.add(under_way);
            let mut reader = PacedRead::new(ours, Arc::clone(&in_flight));
            let writes = async {
                let mut rest = &bytes[..];
                for piece in pieces {
                    let (now, later) = rest.split_at(piece);
                    theirs.write_all(now).await.unwrap();
                    rest = later;
                    tokio::task::yield_now().await;
                }
                drop(theirs);
            };
            let both = async { tokio::join!(read_in_turns(&mut reader, flushes), writes).0 };
            tokio::time::timeout(BOUND, both).await
        });
        prop_assert_eq!(read.expect("it ends"), bytes);
    }
}

/// Records the size of each write.
struct Noted {
    stream: DuplexStream,
    writes: Arc<Mutex<Vec<usize>>>,
}

impl AsyncRead for Noted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Noted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(bytes)) = written {
            self.writes.lock().push(bytes);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The command with this number. All commands have the same length.
fn command(number: usize) -> Cmd {
    let mut command = redis::cmd("ECHO");
    command.arg(format!("{number:06}"));
    command
}

const COMMAND_LENGTH: usize = "*2\r\n$4\r\nECHO\r\n$6\r\n000000\r\n".len();

/// A connection of the client library to a server that answers each read in one write.
struct Wire {
    connection: MultiplexedConnection,
    in_flight: Arc<InFlight>,
    writes: Arc<Mutex<Vec<usize>>>,
    /// The numbers of the commands, in the order of their arrival.
    executed: Arc<Mutex<Vec<usize>>>,
}

impl Wire {
    async fn new() -> Self {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let [writes, executed] = [(); 2].map(|()| Arc::<Mutex<Vec<usize>>>::default());
        tokio::spawn(serve(theirs, Arc::clone(&executed)));
        let in_flight = Arc::<InFlight>::default();
        let noted = Noted {
            stream: ours,
            writes: Arc::clone(&writes),
        };
        let reader = PacedRead::new(noted, Arc::clone(&in_flight));
        let (connection, driver) = MultiplexedConnection::new_with_config(
            &RedisConnectionInfo::default().set_skip_set_lib_name(),
            reader,
            AsyncConnectionConfig::new().set_response_timeout(None),
        )
        .await
        .unwrap();
        tokio::spawn(driver);
        Self {
            connection,
            in_flight,
            writes,
            executed,
        }
    }

    async fn ask(&self, number: usize) {
        let _guard = self.in_flight.add(1);
        let mut connection = self.connection.clone();
        let answer = connection.send_packed_command(&command(number)).await;
        let expected = Value::BulkString(format!("{number:06}").into_bytes());
        assert_eq!(answer.unwrap(), expected);
    }

    /// Lets this many tasks send this many commands each. Returns the average number of commands per write.
    async fn commands_a_write(self, tasks: usize, times: usize) -> f64 {
        let wire = Arc::new(self);
        let asking = (0..tasks).map(|task| {
            let wire = Arc::clone(&wire);
            tokio::spawn(async move {
                for time in 0..times {
                    wire.ask(task * times + time).await;
                }
            })
        });
        let asking: Vec<_> = asking.collect();
        for task in asking {
            tokio::time::timeout(BOUND, task).await.unwrap().unwrap();
        }
        let writes = wire.writes.lock();
        let bytes: usize = writes.iter().sum();
        assert_eq!(bytes, tasks * times * COMMAND_LENGTH);
        (tasks * times) as f64 / writes.len() as f64
    }
}

async fn serve(mut stream: DuplexStream, executed: Arc<Mutex<Vec<usize>>>) {
    let (mut space, mut unread) = (vec![0; 1 << 16], Vec::new());
    loop {
        let read = stream.read(&mut space).await.unwrap();
        if read == 0 {
            return;
        }
        unread.extend_from_slice(&space[..read]);
        let mut answers = Vec::new();
        while unread.len() >= COMMAND_LENGTH {
            let command: Vec<u8> = unread.drain(..COMMAND_LENGTH).collect();
            let number = &command[COMMAND_LENGTH - 8..COMMAND_LENGTH - 2];
            answers.extend_from_slice(b"$6\r\n");
            answers.extend_from_slice(number);
            answers.extend_from_slice(b"\r\n");
            let number = std::str::from_utf8(number).unwrap();
            executed.lock().push(number.parse().unwrap());
        }
        stream.write_all(&answers).await.unwrap();
    }
}

#[tokio::test]
async fn one_task_has_a_write_for_each_command() {
    let wire = Wire::new().await;
    assert_eq!(wire.commands_a_write(1, 200).await, 1.0);
}

/// By itself, the library would put all of them into one write here, and the server would wait for it.
#[tokio::test]
async fn many_tasks_on_one_thread_share_writes_but_not_all_one() {
    let wire = Wire::new().await;
    let commands = wire.commands_a_write(64, 100).await;
    assert!((4.0..24.0).contains(&commands), "{commands}");
}

/// By itself, the library would write each command separately here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_on_many_threads_share_writes() {
    let wire = Wire::new().await;
    let commands = wire.commands_a_write(64, 200).await;
    assert!(commands >= 2.0, "{commands}");
}

#[tokio::test]
async fn commands_are_executed_in_the_order_of_their_first_polls() {
    let wire = Wire::new().await;
    let all = join_all((0..500).map(|number| wire.ask(number)));
    tokio::time::timeout(BOUND, all).await.expect("it ends");
    assert_eq!(*wire.executed.lock(), (0..500).collect::<Vec<_>>());
}
