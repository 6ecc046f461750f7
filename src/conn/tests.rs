//! A server in this process, for tests of connections: it replies as a test says.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::address::Address;

/// Far longer than anything that a test expects.
pub(super) const BOUND: Duration = Duration::from_secs(20);

/// A reply in the form of the protocol, and how long it takes. `None`: nothing more is said on this connection.
pub(super) type Answer = Option<(Duration, String)>;

pub(super) fn at_once(reply: &str) -> Answer {
    Some((Duration::ZERO, format!("{reply}\r\n")))
}

pub(super) fn bulk(text: &str) -> String {
    format!("${}\r\n{text}", text.len())
}

/// A server in this process, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct FakeServer {
    pub(super) address: Address,
    connections: Arc<AtomicUsize>,
    _task: JoinSet<()>,
}

impl FakeServer {
    /// `answer` replies to a command, whose words are joined by blanks.
    pub(super) async fn start(answer: impl Fn(&str) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::<AtomicUsize>::default();
        let (answer, count) = (Arc::new(answer), Arc::clone(&connections));
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut each = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                each.spawn(serve(stream, Arc::clone(&answer)));
            }
        });
        Self {
            address: Address::new("127.0.0.1", port),
            connections,
            _task: task,
        }
    }

    /// The number of connections that were made to it.
    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn serve<F: Fn(&str) -> Answer>(stream: TcpStream, answer: Arc<F>) {
    let mut stream = BufReader::new(stream);
    let mut is_silent = false;
    while let Some(command) = next_command(&mut stream).await {
        match answer(&command).filter(|_| !is_silent) {
            Some((pause, reply)) => {
                tokio::time::sleep(pause).await;
                if stream.write_all(reply.as_bytes()).await.is_err() {
                    return;
                }
            }
            None => is_silent = true,
        }
    }
}

async fn next_command(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut words = Vec::new();
    for _ in 0..count(stream).await? {
        let mut word = vec![0; count(stream).await? + 2];
        stream.read_exact(&mut word).await.ok()?;
        word.truncate(word.len() - 2);
        words.push(String::from_utf8(word).ok()?);
    }
    Some(words.join(" "))
}

async fn count(stream: &mut BufReader<TcpStream>) -> Option<usize> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.get(1..)?.trim_end().parse().ok()
}
