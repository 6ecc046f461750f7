//! Runs a service as a separate process and sends it HTTP requests.

#![allow(dead_code, reason = "each test uses a part of it")]

pub(crate) mod postgres;
pub(crate) mod shop;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

pub(crate) struct Web {
    process: Child,
    address: String,
    lines: UnboundedReceiver<String>,
}

pub(crate) struct Reply {
    pub(crate) status: u16,
    /// The `Retry-After` of the response, in seconds.
    pub(crate) retry_after: Option<u64>,
    pub(crate) body: String,
}

impl Web {
    pub(crate) fn start(program: &str, environment: &[(&str, &str)]) -> Self {
        let mut process = Command::new(program)
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(process.stdout.take().unwrap()).lines();
        let address = said.next().unwrap().unwrap();
        let (line, lines) = unbounded_channel();
        std::thread::spawn(move || {
            said.map_while(Result::ok)
                .try_for_each(|text| line.send(text))
        });
        Self {
            process,
            address,
            lines,
        }
    }

    /// The next line that the program prints behind its address.
    pub(crate) async fn said(&mut self) -> String {
        self.lines.recv().await.expect("the program runs")
    }

    pub(crate) async fn post(&self, path: &str) -> Reply {
        self.request("POST", path).await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.request("GET", path).await
    }

    /// Sends a request, whose reply has not come yet.
    pub(crate) async fn send(&self, method: &str, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    async fn request(&self, method: &str, path: &str) -> Reply {
        let mut stream = self.send(method, path).await;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        let lines = head.lines().map(str::to_lowercase);
        let mut retry =
            lines.filter_map(|line| Some(line.strip_prefix("retry-after: ")?.parse().unwrap()));
        Reply {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            retry_after: retry.next(),
            body: body.to_owned(),
        }
    }

    /// Sends the process a signal: `TERM`, `STOP`, `CONT`.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(sent.unwrap().success());
    }

    /// Whether all its threads are stopped.
    pub(crate) fn is_stopped(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.id())).unwrap();
        tasks.map(Result::unwrap).all(|task| {
            let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
            status.contains("State:\tT")
        })
    }

    pub(crate) fn end(mut self) {
        self.signal("TERM");
        assert!(self.process.wait().unwrap().success(), "it ends in order");
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}
