//! Parses URLs: the kind of target, login, hosts, and the rest.
//!
//! Invariant: errors are fixed texts, which show the right form, so none can repeat a password from the URL.

#[cfg(test)]
mod tests;

use std::net::Ipv6Addr;
use std::num::NonZeroU16;
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion};

use super::address::{Address, distinct};
use super::setup;
#[cfg(feature = "tls")]
use super::tls::{Security, Tls};
use crate::api::error::{Error, Result};

/// The target of a URL.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) kind: TargetKind,
    /// The connection settings of each server: user, password, TLS. Of the address, only the kind matters, except for
    /// a single server.
    pub(crate) model: ConnectionInfo,
}

#[derive(Clone, Debug)]
// There is only one, while a client is built.
#[allow(clippy::large_enum_variant)]
pub(crate) enum TargetKind {
    Single,
    /// A cluster, known by some of its nodes.
    Cluster {
        seeds: Vec<Address>,
    },
    /// A primary with replicas, followed through failovers with the help of sentinels.
    Sentinel {
        sentinels: Vec<Address>,
        /// The name under which the sentinels watch the primary.
        primary: String,
        /// The connection settings of a sentinel.
        sentinel_model: ConnectionInfo,
    },
}

impl Target {
    /// Sets the login at the target's servers, unless the URL has a login.
    pub(crate) fn with_login(mut self, user: Option<String>, password: String) -> Self {
        let settings = self.model.redis_settings();
        if settings.username().is_none() && settings.password().is_none() {
            self.model = logged_in(self.model, Login { user, password });
        }
        self
    }
}

#[cfg(feature = "tls")]
impl Target {
    /// Returns the TLS settings of connections to this target.
    pub(crate) fn security(&self, tls: Option<&Tls>) -> Result<Security> {
        match (self.model.addr(), tls) {
            (ConnectionAddr::TcpTls { .. }, tls) => tls.unwrap_or(&Tls::new()).security(),
            (_, None) => Ok(Security::default()),
            (_, Some(_)) => Err(Error::invalid(
                "connect",
                "certificates are given, but the URL is one without TLS: use rediss, or leave them out",
            )),
        }
    }
}

/// A kind of URL.
struct Form {
    /// The end of its schemes.
    scheme_end: &'static str,
    shown: &'static str,
    /// Reads what follows the colon of the scheme, with or without TLS.
    read: fn(&str, bool) -> Result<Target, Wrong>,
}

static FORMS: [Form; 4] = [
    Form {
        scheme_end: "",
        shown: "redis://[user:password@]host[:port][/db]",
        read: single,
    },
    Form {
        scheme_end: "+unix",
        shown: "unix:///path/to/socket[?db=0&user=..&pass=..]",
        read: unix,
    },
    Form {
        scheme_end: "+cluster",
        shown: "redis+cluster://[user:password@]host[:port],host[:port]",
        read: cluster,
    },
    Form {
        scheme_end: "+sentinel",
        shown: "redis+sentinel://[user:password@]host[:port],host[:port]/primary-name[/db]\
                [?sentinel_user=..&sentinel_password=..]",
        read: sentinel,
    },
];

impl Form {
    /// Returns the form of a scheme, and whether the scheme uses TLS.
    fn of(scheme: &str) -> Option<(&'static Self, bool)> {
        let scheme = scheme.to_ascii_lowercase();
        let (base, end) = match &*scheme {
            "unix" => ("redis", "+unix"),
            scheme => scheme.split_at(scheme.find('+').unwrap_or(scheme.len())),
        };
        let form = FORMS.iter().find(|form| form.scheme_end == end)?;
        match base {
            "redis" | "valkey" => Some((form, false)),
            "rediss" | "valkeys" if end != "+unix" => Some((form, true)),
            _ => None,
        }
    }
}

pub(crate) fn parse(url: &str) -> Result<Target> {
    let url = url.trim();
    let (scheme, rest) = url.split_once(':').unwrap_or_default();
    let Some((form, tls)) = Form::of(scheme) else {
        let forms = FORMS.each_ref().map(|form| form.shown);
        return Err(invalid(
            "it does not start with a scheme lockset knows",
            &format!("{} (and rediss for TLS)", forms.join(", ")),
        ));
    };
    if tls && !cfg!(feature = "tls") {
        return Err(invalid(
            "TLS is not built in: enable the feature `tls` of lockset in Cargo.toml",
            &format!("it, or {} over a private network", form.shown),
        ));
    }
    (form.read)(rest, tls).map_err(|wrong| invalid(wrong, form.shown))
}

fn invalid(wrong: Wrong, forms: &str) -> Error {
    Error::invalid("connect", format!("the URL: {wrong}; use {forms}"))
}

fn single(rest: &str, tls: bool) -> Result<Target, Wrong> {
    let parts = Parts::of(rest, PORT)?;
    let [address] = &*parts.hosts else {
        return Err(
            "several hosts need a cluster (redis+cluster://) or sentinels \
             (redis+sentinel://)",
        );
    };
    let [protocol] = query(parts.query, ["protocol"])?;
    let info = info(address.to_connect(tls), parts.login, parts.path)?;
    Ok(Target {
        kind: TargetKind::Single,
        model: with_protocol(info, protocol)?,
    })
}

fn unix(rest: &str, _: bool) -> Result<Target, Wrong> {
    let rest = without_fragment(rest)?;
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
    let at = ConnectionAddr::Unix(decoded(path)?.into());
    let info = info(at, login, &db.unwrap_or_default())?;
    Ok(Target {
        kind: TargetKind::Single,
        model: with_protocol(info, protocol)?,
    })
}

fn cluster(rest: &str, tls: bool) -> Result<Target, Wrong> {
    let parts = Parts::of(rest, PORT)?;
    let [] = query(parts.query, [])?;
    if !["", "0", "0/"].contains(&parts.path) {
        return Err("a cluster has only database 0, and takes nothing after its hosts");
    }
    let seeds = distinct(parts.hosts);
    let model = info(seeds[0].to_connect(tls), parts.login, "")?;
    let kind = TargetKind::Cluster { seeds };
    Ok(Target { kind, model })
}

fn sentinel(rest: &str, tls: bool) -> Result<Target, Wrong> {
    let parts = Parts::of(rest, SENTINEL_PORT)?;
    let [user, password] = query(parts.query, ["sentinel_user", "sentinel_password"])?;
    let sentinel_login = Login::from(user.unwrap_or_default(), password)?;
    let (primary, db) = parts.path.split_once('/').unwrap_or((parts.path, ""));
    let primary = decoded(primary)?;
    if primary.is_empty() {
        return Err("the primary's name is missing after the sentinels");
    }
    let sentinels = distinct(parts.hosts);
    let at = sentinels[0].to_connect(tls);
    let kind = TargetKind::Sentinel {
        sentinel_model: info(at.clone(), sentinel_login, "")?,
        sentinels,
        primary,
    };
    let model = info(at, parts.login, db)?;
    Ok(Target { kind, model })
}

/// Returns the connection settings for an address, with a login and the number of a database if there are any.
fn info(at: ConnectionAddr, login: Option<Login>, db: &str) -> Result<ConnectionInfo, Wrong> {
    let info = at.into_connection_info();
    let mut info = info.map_err(|_| "its address is of a kind that is not built in")?;
    if let Some(login) = login {
        info = logged_in(info, login);
    }
    let db = db.strip_suffix('/').unwrap_or(db);
    if !db.is_empty() {
        let db: u32 = number(db).ok_or("the database is not a number")?;
        let settings = info.redis_settings().clone().set_db(db.into());
        info = info.set_redis_settings(settings);
    }
    Ok(info)
}

fn logged_in(info: ConnectionInfo, Login { user, password }: Login) -> ConnectionInfo {
    let settings = info.redis_settings().clone().set_password(password);
    let settings = match user {
        Some(user) => settings.set_username(user),
        None => settings,
    };
    info.set_redis_settings(settings)
}

/// Sets the protocol of the connections that do not need a particular one.
fn with_protocol(info: ConnectionInfo, text: Option<String>) -> Result<ConnectionInfo, Wrong> {
    let protocol = match text.as_deref() {
        None => return Ok(info),
        Some("2" | "resp2") => ProtocolVersion::RESP2,
        Some("3" | "resp3") => ProtocolVersion::RESP3,
        Some(_) => return Err("the protocol is neither resp2 nor resp3"),
    };
    Ok(setup::with_protocol(info, protocol))
}

/// The defect of a URL.
type Wrong = &'static str;

const HOST_MISSING: Wrong = "a host is missing";
const HOST_INVALID: Wrong =
    "a host has a character that hosts cannot have, or is an IPv6 address without brackets";
const PORT_INVALID: Wrong = "a port is not a number from 1 to 65535";

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// The parts of a URL. Only user and password are decoded.
struct Parts<'a> {
    login: Option<Login>,
    hosts: Vec<Address>,
    /// The text after the hosts, without its first slash.
    path: &'a str,
    query: &'a str,
}

struct Login {
    user: Option<String>,
    password: String,
}

impl<'a> Parts<'a> {
    /// Splits `rest`, which is the text after the colon of the scheme. Hosts without a port get the default.
    fn of(rest: &'a str, default_port: u16) -> Result<Self, Wrong> {
        let rest = rest.strip_prefix("//");
        let rest = rest.ok_or("the scheme is not followed by ://")?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, behind) = rest.split_at(end);
        if behind.contains('@') {
            return Err(
                "an @ follows the hosts: in user, password and names write @ as %40, / as %2F, \
                 ? as %3F and # as %23",
            );
        }
        let (behind, query) = without_fragment(behind)?
            .split_once('?')
            .unwrap_or((behind, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Login::of(login)?, hosts),
            None => (None, authority),
        };
        let hosts = hosts.split(',').map(|host| address(host, default_port));
        Ok(Self {
            login,
            hosts: hosts.collect::<Result<_, _>>()?,
            path: behind.strip_prefix('/').unwrap_or(behind),
            query,
        })
    }
}

/// Rejects a fragment. The only fragment in use elsewhere turns the TLS checks off.
fn without_fragment(behind: &str) -> Result<&str, Wrong> {
    if behind.contains('#') {
        return Err(
            "it has a #; lockset always verifies certificates, and in user, password and names a \
             # is written %23",
        );
    }
    Ok(behind)
}

impl Login {
    fn of(text: &str) -> Result<Option<Self>, Wrong> {
        if text.contains([',', '@']) {
            return Err(
                "user and password are given once, before the first host; in them write @ as %40 and \
                 a comma as %2C",
            );
        }
        let (user, password) = match text.split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (text, None),
        };
        Self::from(decoded(user)?, password.map(decoded).transpose()?)
    }

    /// Makes the login. A server accepts no user without a password, and a client must not log in as another user by
    /// accident.
    fn from(user: String, password: Option<String>) -> Result<Option<Self>, Wrong> {
        match (user.is_empty(), password) {
            (true, None) => Ok(None),
            (true, Some(password)) if password.is_empty() => Ok(None),
            (false, None) => Err(
                "a user is named without a password: write user:password@ (user:@ if it has none), \
                 or :password@ if that is the password",
            ),
            (is_default, Some(password)) => Ok(Some(Self {
                user: (!is_default).then_some(user),
                password,
            })),
        }
    }
}

/// Parses an address. An IPv6 address stands in brackets.
fn address(text: &str, default_port: u16) -> Result<Address, Wrong> {
    let (name, behind) = match text.strip_prefix('[') {
        Some(bracketed) => {
            let (address, behind) = bracketed.split_once(']').ok_or(HOST_INVALID)?;
            let address: Ipv6Addr = address.parse().map_err(|_| HOST_INVALID)?;
            (address.to_string(), behind)
        }
        None => {
            let (name, behind) = text.split_at(text.find(':').unwrap_or(text.len()));
            (name.to_owned(), behind)
        }
    };
    let port = match behind.strip_prefix(':') {
        Some(port) if !port.contains(':') => Some(port),
        None if behind.is_empty() => None,
        _ => return Err(HOST_INVALID),
    };
    if name.is_empty() {
        return Err(HOST_MISSING);
    }
    let is_wrong = |c: char| c.is_whitespace() || c.is_control() || "<>\\^`{|}%\"".contains(c);
    if name.contains(is_wrong) || name.contains(['[', ']']) {
        return Err(HOST_INVALID);
    }
    if ["0.0.0.0", "::"].contains(&&*name) {
        return Err("0.0.0.0 and [::] are addresses to listen on, not to connect to");
    }
    let port = match port {
        Some(port) => number::<NonZeroU16>(port).ok_or(PORT_INVALID)?.get(),
        None => default_port,
    };
    Ok(Address::new(name, port))
}

/// Parses digits only, without a sign.
fn number<N: FromStr>(text: &str) -> Option<N> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// Decodes percent-encoded text.
fn decoded(text: &str) -> Result<String, Wrong> {
    let text = percent_decode_str(text).decode_utf8();
    let text = text.map_err(|_| "a percent-encoded part does not decode to UTF-8")?;
    Ok(text.into_owned())
}

/// Returns the values of these keys, in the order of the keys. Each key may be given once, and no other key.
fn query<const N: usize>(query: &str, keys: [&str; N]) -> Result<[Option<String>; N], Wrong> {
    let mut values = [const { None }; N];
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair
            .split_once('=')
            .ok_or("a key after the ? has no value")?;
        let at = keys.iter().position(|known| *known == key);
        let at = at.ok_or("unknown key after the ?")?;
        // As in a form, a plus is a space.
        let value = decoded(&value.replace('+', " "))?;
        if values[at].replace(value).is_some() {
            return Err("a key after the ? is given twice");
        }
    }
    Ok(values)
}
