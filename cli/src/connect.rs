//! Connecting as a program would: every topology that the library has, with the same settings.

use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use lockset::{Client, ClientBuilder, Event, Redlock, Tls};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

use crate::failure::Failure;
use crate::globals::Globals;
use crate::login::Login;
use crate::output::Output;

/// The options and the output of one call.
pub(crate) struct Context {
    globals: Globals,
    pub(crate) output: Output,
}

/// The servers that the URLs name.
pub(crate) enum Servers {
    /// One, a cluster, or a primary with its replicas.
    One(Client),
    /// Independent servers: a majority grants.
    Quorum(Redlock, Vec<Client>),
}

/// The reasons that operators gave when they freed a lock. The channel closes with the clients.
pub(crate) type Reasons = UnboundedReceiver<String>;

/// Certificates in PEM.
pub(crate) struct Certificates {
    /// The authorities to trust.
    pub(crate) roots: Option<Vec<u8>>,
    /// The client certificate, and its key.
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
}

/// The bound on the shutdown of a client: the rest ends with its lease.
pub(crate) const END_MAX: Duration = Duration::from_secs(1);

impl Servers {
    /// Announces the clients with what they hold, for operators.
    pub(crate) async fn announce(&self) {
        let clients = match self {
            Self::One(client) => std::slice::from_ref(client),
            Self::Quorum(_, clients) => clients,
        };
        // Operators see less without it; the command needs none of it.
        join_all(clients.iter().map(Client::announce)).await;
    }

    /// Releases everything that no guard holds: grants on their way, places in queues. Goes on for `max` if servers do not
    /// answer.
    pub(crate) async fn end(self, max: Duration) {
        let clients = match self {
            Self::One(client) => vec![client],
            Self::Quorum(_, clients) => clients,
        };
        let ends = join_all(clients.into_iter().map(Client::shutdown));
        // An error here has no new information.
        let _ = timeout(max, ends).await;
    }
}

/// Whether this is several URLs. A password in the query of one may have any sign.
fn is_several(url: &str) -> bool {
    let before_query = url.split('?').next();
    before_query.is_some_and(|url| url.matches("://").count() > 1)
}

const COMMA: &str = "several URLs are separated by spaces, and only hosts of one URL by commas";

const NO_URL: &str =
    "no server: give --url URL, or set LOCKSET_URL, such as redis://127.0.0.1:6379";

impl Context {
    pub(crate) fn new(mut globals: Globals) -> Result<Self, Failure> {
        globals.urls.retain(|url| !url.is_empty());
        if let Some(login) = Login::from_environment(globals.user.as_deref())? {
            let urls = globals.urls.iter();
            globals.urls = urls.map(|url| login.put_into(url)).collect();
        }
        let output = Output::new(globals.json, globals.color);
        Ok(Self { globals, output })
    }

    /// The URLs as they were given.
    pub(crate) fn urls(&self) -> Result<&[String], Failure> {
        match &*self.globals.urls {
            [] => Err(Failure::usage(NO_URL)),
            urls if urls.iter().any(|url| is_several(url)) => Err(Failure::usage(COMMA)),
            urls => Ok(urls),
        }
    }

    /// The one URL, for verbs that ask one server or one cluster.
    pub(crate) fn url(&self) -> Result<&str, Failure> {
        match self.urls()? {
            [url] => Ok(url),
            _ => Err(Failure::usage(
                "this verb asks one server or cluster: give one URL",
            )),
        }
    }

    /// The prefix of every name.
    pub(crate) fn prefix(&self) -> &str {
        self.globals.prefix.as_deref().unwrap_or_default()
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.globals.connect_timeout
    }

    /// The certificates, if any were given.
    fn tls(&self) -> Result<Option<Tls>, Failure> {
        let name = &self.globals.tls_server_name;
        let Certificates { roots, client } = self.certificates()?;
        if roots.is_none() && client.is_none() && name.is_none() {
            return Ok(None);
        }
        let mut tls = Tls::new();
        if let Some(roots) = roots {
            tls = tls.root_certificates_pem(roots);
        }
        if let Some((certificate, key)) = client {
            tls = tls.client_certificate_pem(certificate, key);
        }
        if let Some(name) = name {
            tls = tls.server_name(name);
        }
        Ok(Some(tls))
    }

    /// The contents of the certificate files.
    pub(crate) fn certificates(&self) -> Result<Certificates, Failure> {
        let Globals {
            tls_ca,
            tls_cert,
            tls_key,
            ..
        } = &self.globals;
        let roots = tls_ca.as_deref().map(pem).transpose()?;
        let client = match (tls_cert, tls_key) {
            (Some(certificate), Some(key)) => Some((pem(certificate)?, pem(key)?)),
            _ => None,
        };
        Ok(Certificates { roots, client })
    }

    /// Whether certificates name another host than the one that is connected to.
    pub(crate) fn has_server_name(&self) -> bool {
        self.globals.tls_server_name.is_some()
    }

    /// A client of the one URL.
    pub(crate) async fn client(&self) -> Result<Client, Failure> {
        self.client_of(self.url()?).await
    }

    /// A client of one of the URLs.
    pub(crate) async fn client_of(&self, url: &str) -> Result<Client, Failure> {
        Ok(self.builder(url)?.build().await?)
    }

    /// A client of the one URL whose questions end after this time without an answer.
    pub(crate) async fn client_that_gives_up(&self, after: Duration) -> Result<Client, Failure> {
        let builder = self.builder(self.url()?)?.give_up_after(after);
        Ok(builder.build().await?)
    }

    /// A client that connects with its first command.
    pub(crate) async fn lazy_client_of(&self, url: &str) -> Result<Client, Failure> {
        Ok(self.builder(url)?.lazy().build().await?)
    }

    /// A client, or a quorum if there are several URLs, and the reasons of operators who free its locks.
    /// Operators see them under this label.
    pub(crate) async fn servers(
        &self,
        lease: Duration,
        label: &str,
    ) -> Result<(Servers, Reasons), Failure> {
        let (told, reasons) = unbounded_channel();
        let builder = |url| {
            let told = told.clone();
            let observer = move |event: &Event<'_>| {
                if let Event::Freed { reason, .. } = event {
                    // The receiver may be gone.
                    let _ = told.send(reason.clone().into_owned());
                }
            };
            let builder = self.builder(url)?.lease(lease).label(label);
            Ok::<_, Failure>(builder.observer(observer))
        };
        if let [url] = self.urls()? {
            let client = builder(url)?.build().await?;
            return Ok((Servers::One(client), reasons));
        }
        let mut clients = Vec::new();
        for url in self.urls()? {
            // A minority of them may be down.
            clients.push(builder(url)?.lazy().build().await?);
        }
        let quorum = Redlock::builder(clients.clone());
        let quorum = quorum.longest_lease(self.globals.quorum_lease_max.max(lease));
        Ok((Servers::Quorum(quorum.build()?, clients), reasons))
    }

    fn builder(&self, url: &str) -> Result<ClientBuilder, Failure> {
        let mut builder = Client::builder(url)
            .key_prefix(self.prefix())
            .connect_timeout(self.connect_timeout());
        if let Some(tls) = self.tls()? {
            builder = builder.tls(tls);
        }
        Ok(builder)
    }
}

fn pem(file: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(file).map_err(|error| Failure::usage(format!("{}: {error}", file.display())))
}
