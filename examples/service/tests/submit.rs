//! The form over HTTP, in two processes.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use futures_util::future::join_all;
use lockset_testkit::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

struct Web {
    process: Child,
    address: String,
}

impl Web {
    fn start(redis: &str) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_submit"))
            .env("REDIS_URL", redis)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut address = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut address)
            .unwrap();
        Self {
            process,
            address: address.trim().to_owned(),
        }
    }

    /// The status of a post, and its Retry-After.
    async fn post(&self, path: &str) -> (u16, Option<u64>) {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.unwrap();
        let status = reply.split(' ').nth(1).unwrap().parse().unwrap();
        let lines = reply.lines().map(str::to_lowercase);
        let retry =
            lines.filter_map(|line| Some(line.strip_prefix("retry-after: ")?.parse().unwrap()));
        (status, retry.last())
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

#[tokio::test]
async fn of_two_hundred_posts_to_two_processes_one_passes() {
    let redis = Server::start();
    let web = [Web::start(&redis.url()), Web::start(&redis.url())];
    let posts = (0..200).map(|i| web[i % 2].post("/ada/form-7"));
    let replies = join_all(posts).await;
    let passed = replies.iter().filter(|reply| **reply == (200, None));
    assert_eq!(passed.count(), 1, "{replies:?}");
    let refused = replies.iter().filter(|(status, retry)| {
        *status == 429 && retry.is_some_and(|seconds| (1..=15).contains(&seconds))
    });
    assert_eq!(refused.count(), 199, "{replies:?}");
    // Another form of the same user is another key.
    assert_eq!(web[0].post("/ada/form-8").await, (200, None));
}
