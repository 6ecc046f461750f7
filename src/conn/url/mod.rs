//! Parses URLs. Errors show the right form and never repeat a password.

mod parts;

#[cfg(test)]
mod tests;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion};

use self::parts::{Host, Login, Parts, Wrong, decoded, number, query};
use super::address::Address;
#[cfg(feature = "tls")]
use super::tls::{Security, Tls};
use crate::api::error::{Error, Result};

const SERVER_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// The target of a URL.
#[derive(Clone, Debug)]
// There is one while a client is built.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Target {
    Single(ConnectionInfo),
    /// A cluster, known by some of its nodes.
    Cluster {
        seeds: Vec<Address>,
        /// The connection settings of each node: user, password, TLS.
        model: ConnectionInfo,
    },
    /// A primary with replicas, followed through failovers with the help of sentinels.
    Sentinel {
        sentinels: Vec<Address>,
        /// The name under which the sentinels watch the primary.
        primary: String,
        /// The connection settings of a sentinel.
        sentinel_model: ConnectionInfo,
        /// The connection settings of a server.
        model: ConnectionInfo,
    },
}

impl Target {
    /// The target with this login at its servers, unless the URL has a login.
    pub(crate) fn with_login(mut self, user: Option<String>, password: String) -> Self {
        let model = match &mut self {
            Self::Single(info) => info,
            Self::Cluster { model, .. } | Self::Sentinel { model, .. } => model,
        };
        let settings = model.redis_settings();
        if settings.username().is_none() && settings.password().is_none() {
            *model = logged_in(model.clone(), Login { user, password });
        }
        self
    }
}

#[cfg(feature = "tls")]
impl Target {
    /// The TLS settings of connections to this target.
    pub(crate) fn security(&self, tls: Option<&Tls>) -> Result<Security> {
        let model = match self {
            Self::Single(info) => info,
            Self::Cluster { model, .. } | Self::Sentinel { model, .. } => model,
        };
        match (model.addr(), tls) {
            (ConnectionAddr::TcpTls { .. }, tls) => tls.unwrap_or(&Tls::new()).security(),
            (_, None) => Ok(Security::default()),
            (_, Some(_)) => Err(Error::invalid(
                "connect",
                "certificates are given, but the URL is one without TLS: use rediss, or leave them out",
            )),
        }
    }
}

/// The kinds of URLs, each with its own form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Single,
    Unix,
    Cluster,
    Sentinel,
}

impl Form {
    /// The form of a scheme, and whether it uses TLS.
    fn of(scheme: &str) -> Option<(Self, bool)> {
        let scheme = scheme.to_ascii_lowercase();
        if scheme == "unix" {
            return Some((Self::Unix, false));
        }
        let (base, form) = match scheme.split_once('+') {
            None => (&*scheme, Self::Single),
            Some((base, "unix")) => (base, Self::Unix),
            Some((base, "cluster")) => (base, Self::Cluster),
            Some((base, "sentinel")) => (base, Self::Sentinel),
            Some(_) => return None,
        };
        match base {
            "redis" | "valkey" => Some((form, false)),
            "rediss" | "valkeys" if form != Self::Unix => Some((form, true)),
            _ => None,
        }
    }

    fn shown(self) -> &'static str {
        match self {
            Self::Single => "redis://[user:password@]host[:port][/db]",
            Self::Unix => "unix:///path/to/socket[?db=0&user=..&pass=..]",
            Self::Cluster => "redis+cluster://[user:password@]host[:port],host[:port]",
            Self::Sentinel => {
                "redis+sentinel://[user:password@]host[:port],host[:port]/primary-name[/db]\
                 [?sentinel_user=..&sentinel_password=..]"
            }
        }
    }
}

pub(crate) fn parse(url: &str) -> Result<Target> {
    let url = url.trim();
    let (scheme, rest) = url.split_once(':').unwrap_or_default();
    let Some((form, tls)) = Form::of(scheme) else {
        let forms = [Form::Single, Form::Unix, Form::Cluster, Form::Sentinel].map(Form::shown);
        return Err(invalid(
            "it does not start with a scheme lockset knows",
            &format!("{} (and rediss for TLS)", forms.join(", ")),
        ));
    };
    if tls && !cfg!(feature = "tls") {
        return Err(invalid(
            "TLS is not built in: enable the feature `tls` of lockset in Cargo.toml",
            &format!("it, or {} over a private network", form.shown()),
        ));
    }
    let target = match form {
        Form::Unix => unix(rest),
        _ => rest
            .strip_prefix("//")
            .ok_or("the scheme is not followed by ://")
            .and_then(Parts::of)
            .and_then(|parts| match form {
                Form::Cluster => cluster(parts, tls),
                Form::Sentinel => sentinel(parts, tls),
                Form::Single | Form::Unix => single(parts, tls),
            }),
    };
    target.map_err(|wrong| invalid(wrong, form.shown()))
}

fn invalid(wrong: Wrong, forms: &str) -> Error {
    Error::invalid("connect", format!("the URL: {wrong}; use {forms}"))
}

fn single(parts: Parts<'_>, tls: bool) -> Result<Target, Wrong> {
    let [host] = &*parts.hosts else {
        return Err(
            "several hosts need a cluster (redis+cluster://) or sentinels \
             (redis+sentinel://)",
        );
    };
    let address = address(host, SERVER_PORT);
    let [protocol] = query(parts.query, ["protocol"])?;
    let info = info(connect_to(&address, tls), parts.login)?;
    with_protocol(with_db(info, parts.path)?, protocol).map(Target::Single)
}

fn unix(rest: &str) -> Result<Target, Wrong> {
    let rest = parts::without_fragment(rest)?;
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let (path, behind) = rest.split_once('?').unwrap_or((rest, ""));
    if !path.starts_with('/') {
        return Err("the path of the socket does not start with a slash");
    }
    if !cfg!(unix) {
        return Err("this system has no such sockets");
    }
    let [db, user, password, protocol] = query(behind, ["db", "user", "pass", "protocol"])?;
    let login = Login::from(user.unwrap_or_default(), password)?;
    let info = info(ConnectionAddr::Unix(decoded(path)?.into()), login)?;
    with_protocol(with_db(info, &db.unwrap_or_default())?, protocol).map(Target::Single)
}

fn cluster(parts: Parts<'_>, tls: bool) -> Result<Target, Wrong> {
    let [] = query(parts.query, [])?;
    if !["", "0", "0/"].contains(&parts.path) {
        return Err("a cluster has only database 0, and takes nothing after its hosts");
    }
    let seeds = addresses(&parts.hosts, SERVER_PORT);
    let model = info(connect_to(&seeds[0], tls), parts.login)?;
    Ok(Target::Cluster { seeds, model })
}

fn sentinel(parts: Parts<'_>, tls: bool) -> Result<Target, Wrong> {
    let [user, password] = query(parts.query, ["sentinel_user", "sentinel_password"])?;
    let sentinel_login = Login::from(user.unwrap_or_default(), password)?;
    let (primary, db) = parts.path.split_once('/').unwrap_or((parts.path, ""));
    let primary = decoded(primary)?;
    if primary.is_empty() {
        return Err("the primary's name is missing after the sentinels");
    }
    let sentinels = addresses(&parts.hosts, SENTINEL_PORT);
    let at = connect_to(&sentinels[0], tls);
    Ok(Target::Sentinel {
        sentinel_model: info(at.clone(), sentinel_login)?,
        model: with_db(info(at, parts.login)?, db)?,
        sentinels,
        primary,
    })
}

fn address(host: &Host, default_port: u16) -> Address {
    Address {
        host: host.name.as_str().into(),
        port: host.port.unwrap_or(default_port),
    }
}

/// The distinct addresses, in their order.
fn addresses(hosts: &[Host], default_port: u16) -> Vec<Address> {
    let mut addresses = Vec::with_capacity(hosts.len());
    for host in hosts {
        let address = address(host, default_port);
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

fn connect_to(address: &Address, tls: bool) -> ConnectionAddr {
    let (host, port) = (String::new(), 0);
    let model = if tls {
        ConnectionAddr::TcpTls {
            host,
            port,
            insecure: false,
            tls_params: None,
        }
    } else {
        ConnectionAddr::Tcp(host, port)
    };
    address.connect_like(&model)
}

fn info(at: ConnectionAddr, login: Option<Login>) -> Result<ConnectionInfo, Wrong> {
    let info = at.into_connection_info();
    let info = info.map_err(|_| "its address is of a kind that is not built in")?;
    Ok(match login {
        Some(login) => logged_in(info, login),
        None => info,
    })
}

fn logged_in(info: ConnectionInfo, Login { user, password }: Login) -> ConnectionInfo {
    let settings = info.redis_settings().clone().set_password(password);
    let settings = match user {
        Some(user) => settings.set_username(user),
        None => settings,
    };
    info.set_redis_settings(settings)
}

fn with_db(info: ConnectionInfo, text: &str) -> Result<ConnectionInfo, Wrong> {
    let text = text.strip_suffix('/').unwrap_or(text);
    if text.is_empty() {
        return Ok(info);
    }
    let db = number(text).ok_or("the database is not a number")?;
    let settings = info.redis_settings().clone().set_db(db.into());
    Ok(info.set_redis_settings(settings))
}

/// Sets the protocol of the connections that do not need a particular one.
fn with_protocol(info: ConnectionInfo, text: Option<String>) -> Result<ConnectionInfo, Wrong> {
    let protocol = match text.as_deref() {
        None => return Ok(info),
        Some("2" | "resp2") => ProtocolVersion::RESP2,
        Some("3" | "resp3") => ProtocolVersion::RESP3,
        Some(_) => return Err("the protocol is neither resp2 nor resp3"),
    };
    let settings = info.redis_settings().clone().set_protocol(protocol);
    Ok(info.set_redis_settings(settings))
}
