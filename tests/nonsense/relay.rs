//! Forwards between a client and a real server, and replaces one lane's replies with nonsense.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// The lane of a connection, recognized by the connection's name. Only the push connection speaks
/// the newer protocol, which it requests before it sets a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Command,
    Renewal,
    Push,
}

pub(crate) const LANES: [Lane; 3] = [Lane::Command, Lane::Renewal, Lane::Push];

/// The bytes sent in place of a reply: `first`, then `endless` again and again.
#[derive(Clone, Debug)]
pub(crate) struct Nonsense {
    pub(crate) name: &'static str,
    pub(crate) first: Vec<u8>,
    pub(crate) endless: Vec<u8>,
}

impl Nonsense {
    pub(crate) fn once(name: &'static str, first: impl AsRef<[u8]>) -> Self {
        Self::endless(name, first, "")
    }

    pub(crate) fn endless(
        name: &'static str,
        first: impl AsRef<[u8]>,
        endless: impl AsRef<[u8]>,
    ) -> Self {
        // Whole repetitions, sent in large writes.
        let endless = endless.as_ref();
        let times = (1_usize << 16).div_ceil(endless.len().max(1));
        Self {
            name,
            first: first.as_ref().to_vec(),
            endless: endless.repeat(times),
        }
    }
}

/// A connection that received nonsense receives nothing after it.
pub(crate) struct Relay {
    address: SocketAddr,
    scheme: &'static str,
    spoken: Spoken,
}

type Spoken = Arc<Mutex<Option<(Lane, Nonsense)>>>;

impl Relay {
    pub(crate) fn before(server: SocketAddr) -> Self {
        Self::start("redis", move |client, spoken| async move {
            let _ = connected(client, server, spoken).await;
        })
    }

    /// Like `start`, but clients must use TLS.
    #[cfg(feature = "tls")]
    pub(crate) fn over_tls(server: SocketAddr, acceptor: tokio_rustls::TlsAcceptor) -> Self {
        Self::start("rediss", move |client, spoken| {
            let accepted = acceptor.accept(client);
            async move {
                if let Ok(client) = accepted.await {
                    let _ = connected(client, server, spoken).await;
                }
            }
        })
    }

    /// Runs on a separate thread, which ends with the process.
    fn start<F>(
        scheme: &'static str,
        serve: impl Fn(TcpStream, Spoken) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + 'static,
    {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let spoken = Spoken::default();
        let theirs = Arc::clone(&spoken);
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let tasks = tokio::task::LocalSet::new();
            tasks.block_on(&runtime, async move {
                let listener = TcpListener::from_std(listener).unwrap();
                while let Ok((client, _)) = listener.accept().await {
                    client.set_nodelay(true).unwrap();
                    tokio::task::spawn_local(serve(client, Arc::clone(&theirs)));
                }
            });
        });
        Self {
            address,
            scheme,
            spoken,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    pub(crate) fn says(&self, lane: Lane, nonsense: &Nonsense) {
        *self.spoken.lock().unwrap() = Some((lane, nonsense.clone()));
    }

    pub(crate) fn is_sane(&self) {
        *self.spoken.lock().unwrap() = None;
    }
}

async fn connected(
    client: impl AsyncRead + AsyncWrite + Send + 'static,
    server: SocketAddr,
    spoken: Spoken,
) -> io::Result<()> {
    let server = TcpStream::connect(server).await?;
    server.set_nodelay(true)?;
    let ((from_client, to_client), (from_server, to_server)) =
        (tokio::io::split(client), tokio::io::split(server));
    let (say, said) = unbounded_channel();
    let answers = tokio::spawn(answer(from_server, to_client, said));
    let asked = ask(from_client, to_server, say, &spoken).await;
    answers.abort();
    asked
}

/// Forwards requests to the server until nonsense is due, and then notifies the other half.
async fn ask(
    mut client: impl AsyncRead + Unpin,
    mut server: impl AsyncWrite + Unpin,
    say: UnboundedSender<Nonsense>,
    spoken: &Spoken,
) -> io::Result<()> {
    let mut lane = None;
    let mut space = vec![0; 1 << 16];
    loop {
        let count = client.read(&mut space).await?;
        if count == 0 {
            return Ok(());
        }
        let asked = &space[..count];
        lane = lane.or_else(|| lane_of(asked));
        let nonsense = match &*spoken.lock().unwrap() {
            Some((on, nonsense)) if lane == Some(*on) => Some(nonsense.clone()),
            _ => None,
        };
        match nonsense {
            Some(nonsense) => drop(say.send(nonsense)),
            None => server.write_all(asked).await?,
        }
    }
}

fn lane_of(asked: &[u8]) -> Option<Lane> {
    let has = |word: &[u8]| asked.windows(word.len()).any(|at| at == word);
    if has(b"HELLO") {
        return Some(Lane::Push);
    }
    let names: [(&[u8], Lane); 2] = [
        (b"lockset-command-", Lane::Command),
        (b"lockset-renewal-", Lane::Renewal),
    ];
    let named = names.into_iter().find(|(name, _)| has(name));
    named.map(|(_, lane)| lane)
}

async fn answer(
    mut server: impl AsyncRead + Unpin,
    mut client: impl AsyncWrite + Unpin,
    mut said: tokio::sync::mpsc::UnboundedReceiver<Nonsense>,
) -> io::Result<()> {
    let mut space = vec![0; 1 << 16];
    loop {
        tokio::select! {
            biased;
            Some(nonsense) = said.recv() => {
                client.write_all(&nonsense.first).await?;
                client.flush().await?;
                while !nonsense.endless.is_empty() {
                    client.write_all(&nonsense.endless).await?;
                }
                // The server's further replies are dropped.
                while let Some(nonsense) = said.recv().await {
                    client.write_all(&nonsense.first).await?;
                    client.flush().await?;
                }
            }
            count = server.read(&mut space) => match count? {
                0 => return Ok(()),
                count => {
                    client.write_all(&space[..count]).await?;
                    client.flush().await?;
                }
            }
        }
    }
}
