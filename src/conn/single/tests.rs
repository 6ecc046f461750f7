//! Tests of the connections to one server that is slow.

use redis::IntoConnectionInfo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const REPLY: Duration = Duration::from_secs(1);

/// Refuses each command, the first `PING` after 0.6 s and the next after 0.9 s more.
async fn serve(mut stream: TcpStream) {
    let mut space = vec![0; 4096];
    let mut pause = REPLY * 3 / 5;
    while let Ok(read @ 1..) = stream.read(&mut space).await {
        let text = String::from_utf8_lossy(&space[..read]).into_owned();
        for command in text.split('*').skip(1) {
            if command.contains("PING") {
                tokio::time::sleep(pause).await;
                pause = REPLY * 9 / 10;
            }
            if stream.write_all(b"-ERR no\r\n").await.is_err() {
                return;
            }
        }
    }
}

/// A renewal whose reply is late does not end a connection that has answered another one meanwhile.
#[tokio::test]
async fn a_renewal_behind_a_slow_one_does_not_end_the_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    let setup = Setup::sample(REPLY);
    let server = SingleServer::new(url.into_connection_info().unwrap(), &setup);
    server.open().await.unwrap();
    let ping = redis::cmd("PING");
    let pings = [&ping];
    let renew = || server.link(Lane::Renewal).exchange(&pings, REPLY);
    let (first, second) = join(renew(), renew()).await;
    first.expect("in time");
    let late = format!("{:?}", second.unwrap_err());
    assert!(late.contains("no reply within 1s"), "{late}");
    assert!(server.link(Lane::Renewal).is_open());
}
