//! Moves bytes between sockets as the rules say, with four small loops per connection: two readers
//! that hand in bytes, and two writers that ask for the next bytes to send.
//!
//! The loops make no decisions, so all bytes follow the rules. A reader never waits for a writer.

use std::net::{SocketAddr, TcpListener as StdListener};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::SharedRules;
use super::rules::{Direction, Handles, Item, Next};

const CHUNK: usize = 64 * 1024;

/// Accepts connections forever.
pub(super) async fn serve(listener: StdListener, target: SocketAddr, rules: SharedRules) {
    let listener = TcpListener::from_std(listener).expect("the listener is non-blocking");
    loop {
        match listener.accept().await {
            Ok((client, _)) => {
                let (link, target) = {
                    let mut rules = rules.lock();
                    (rules.open_link(), rules.target.unwrap_or(target))
                };
                // A refused connection closes when it is dropped.
                if let Some(link) = link {
                    tokio::spawn(run(client, target, rules.clone(), link));
                }
            }
            // The system lacks a resource that it may have again later.
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Serves one connection until it closes.
async fn run(client: TcpStream, target: SocketAddr, rules: SharedRules, link: Handles) {
    let id = link.id;
    let connected = link
        .server
        .run_until_cancelled(TcpStream::connect(target))
        .await;
    if let Some(Ok(server)) = connected {
        // A failure only costs time, never correctness.
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::join!(
            read(&rules, id, Direction::Requests, from_client, &link.client),
            read(&rules, id, Direction::Replies, from_server, &link.server),
            write_requests(&rules, &link, to_server),
            write_replies(&rules, &link, to_client),
        );
    }
    rules.lock().close_link(id);
}

/// Hands in everything from one side, until that side ends or must be closed.
async fn read(
    rules: &SharedRules,
    id: u64,
    direction: Direction,
    mut from: OwnedReadHalf,
    closed: &CancellationToken,
) {
    let mut buffer = vec![0; CHUNK];
    while let Some(outcome) = closed.run_until_cancelled(from.read(&mut buffer)).await {
        match outcome {
            Ok(length @ 1..) => rules
                .lock()
                .arrive(id, direction, buffer[..length].to_vec()),
            // A reset counts as an end.
            Ok(0) | Err(_) => {
                rules.lock().end(id, direction);
                return;
            }
        }
    }
}

async fn write_requests(rules: &SharedRules, link: &Handles, mut to: OwnedWriteHalf) {
    let (id, closed) = (link.id, &link.server);
    while let Some(item) = next(rules, id, Direction::Requests, &link.requests).await {
        match item {
            Item::Bytes(bytes) => {
                // When the server is gone, its end arrives as a reply and closes everything.
                if !matches!(
                    closed.run_until_cancelled(to.write_all(&bytes)).await,
                    Some(Ok(()))
                ) {
                    return;
                }
            }
            Item::End => {
                let _ = to.shutdown().await;
                return;
            }
        }
    }
}

async fn write_replies(rules: &SharedRules, link: &Handles, to: OwnedWriteHalf) {
    let (id, closed) = (link.id, &link.client);
    let mut to = Some(to);
    loop {
        let item = tokio::select! {
            item = next(rules, id, Direction::Replies, &link.replies) => item,
            // The client's socket closes now, although the server may send more.
            () = closed.cancelled(), if to.is_some() => {
                to = None;
                continue;
            }
        };
        match item {
            Some(Item::Bytes(bytes)) => {
                if let Some(open) = &mut to
                    && !matches!(
                        closed.run_until_cancelled(open.write_all(&bytes)).await,
                        Some(Ok(()))
                    )
                {
                    to = None;
                }
            }
            // A server that closes is done with the connection, so the client must see it closed.
            Some(Item::End) => {
                rules.lock().close_link(id);
                return;
            }
            None => return,
        }
    }
}

/// Waits for the next item that may leave a lane. `None` once the connection is gone.
async fn next(rules: &SharedRules, id: u64, direction: Direction, wake: &Notify) -> Option<Item> {
    loop {
        // Outside the match, so that the lock is not held during the wait.
        let step = rules.lock().next(id, direction);
        match step {
            Next::Item(item) => return Some(item),
            Next::Never => return None,
            Next::Later => wake.notified().await,
            Next::At(due) => tokio::select! {
                () = sleep_until(due.into()) => {}
                () = wake.notified() => {}
            },
        }
    }
}
