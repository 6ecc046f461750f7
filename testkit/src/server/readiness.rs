//! Identifies a server with a few bytes over a blocking socket.
//!
//! Blocking, so that a server can be started from any context, inside a runtime or outside.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The limit for each step. The caller retries.
const STEP_BOUND: Duration = Duration::from_secs(1);

/// What a server reports about itself.
#[derive(Debug)]
pub(super) struct Identity {
    /// The process id.
    pub(super) pid: u32,
    /// The server's own version, not a compatible one.
    pub(super) version: String,
    /// Whether it is Valkey.
    pub(super) valkey: bool,
}

/// The server behind `address`, once it is ready for commands.
pub(super) fn identify(address: SocketAddr, password: Option<&str>) -> io::Result<Identity> {
    let stream = TcpStream::connect_timeout(&address, STEP_BOUND)?;
    stream.set_read_timeout(Some(STEP_BOUND))?;
    stream.set_write_timeout(Some(STEP_BOUND))?;
    let mut stream = BufReader::new(stream);

    if let Some(password) = password {
        expect("OK", &ask(&mut stream, &["AUTH", password])?)?;
    }
    // A server that is still loading its data answers INFO but not PING.
    expect("PONG", &ask(&mut stream, &["PING"])?)?;

    let info = ask(&mut stream, &["INFO", "server"])?;
    let field = |name: &str| {
        info.lines()
            .filter_map(|line| line.split_once(':'))
            .find_map(|(key, value)| (key == name).then(|| value.trim().to_owned()))
    };
    // The server forgets this connection when it closes it, so tests never see it. A sentinel does
    // not know the command.
    if ask(&mut stream, &["QUIT"])? == "OK" {
        io::copy(&mut stream, &mut io::sink())?;
    }

    let pid = field("process_id").and_then(|id| id.parse().ok());
    let valkey = field("valkey_version");
    let is_valkey = valkey.is_some();
    match (pid, valkey.or_else(|| field("redis_version"))) {
        (Some(pid), Some(version)) => Ok(Identity {
            pid,
            version,
            valkey: is_valkey,
        }),
        _ => Err(io::Error::other(format!("no process id in {info:?}"))),
    }
}

fn expect(wanted: &str, answer: &str) -> io::Result<()> {
    if answer == wanted {
        Ok(())
    } else {
        Err(io::Error::other(format!("it answered {answer:?}")))
    }
}

/// Sends one command and reads its reply: a simple string, an error or a bulk string.
fn ask(stream: &mut BufReader<TcpStream>, command: &[&str]) -> io::Result<String> {
    let mut request = format!("*{}\r\n", command.len());
    for word in command {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.get_mut().write_all(request.as_bytes())?;

    let mut line = String::new();
    stream.read_line(&mut line)?;
    let line = line.trim_end();
    match line.split_at_checked(1) {
        Some(("+" | "-", text)) => Ok(text.to_owned()),
        Some(("$", length)) => {
            let length: usize = length.parse().map_err(io::Error::other)?;
            // A line end follows the text.
            let mut text = vec![0; length + 2];
            stream.read_exact(&mut text)?;
            Ok(String::from_utf8_lossy(&text[..length]).into_owned())
        }
        _ => Err(io::Error::other(format!("it answered {line:?}"))),
    }
}
