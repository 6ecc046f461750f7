//! Splits a URL into login, hosts, and the rest. Pure.
//!
//! Invariant: errors are fixed texts, so none can repeat a secret from the URL.

use std::net::Ipv6Addr;

use percent_encoding::percent_decode_str;

/// The defect of a URL.
pub(super) type Wrong = &'static str;

const HOST_MISSING: Wrong = "a host is missing";
const HOST_INVALID: Wrong =
    "a host has a character that hosts cannot have, or is an IPv6 address without brackets";
const PORT_INVALID: Wrong = "a port is not a number from 1 to 65535";

/// The parts of a URL. Only user and password are decoded.
#[derive(Debug, Default)]
pub(super) struct Parts<'a> {
    pub(super) login: Option<Login>,
    pub(super) hosts: Vec<Host>,
    /// The text after the hosts, without its first slash.
    pub(super) path: &'a str,
    pub(super) query: &'a str,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) user: Option<String>,
    pub(super) password: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    /// The host without brackets.
    pub(super) name: String,
    pub(super) port: Option<u16>,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").finish_non_exhaustive()
    }
}

impl<'a> Parts<'a> {
    /// Splits `rest`, which is the text after the `//` of the scheme.
    pub(super) fn of(rest: &'a str) -> Result<Self, Wrong> {
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
        Ok(Self {
            login,
            hosts: hosts.split(',').map(Host::of).collect::<Result<_, _>>()?,
            path: behind.strip_prefix('/').unwrap_or(behind),
            query,
        })
    }
}

/// Rejects a fragment. The only one in use elsewhere turns the TLS checks off.
pub(super) fn without_fragment(behind: &str) -> Result<&str, Wrong> {
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

    /// A server accepts no user without a password, and a client must not log in as another user by accident.
    pub(super) fn from(user: String, password: Option<String>) -> Result<Option<Self>, Wrong> {
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

impl Host {
    fn of(text: &str) -> Result<Self, Wrong> {
        let (name, port) = match text.strip_prefix('[') {
            Some(bracketed) => {
                let (address, behind) = bracketed.split_once(']').ok_or(HOST_INVALID)?;
                let address: Ipv6Addr = address.parse().map_err(|_| HOST_INVALID)?;
                let port = match behind.strip_prefix(':') {
                    Some(port) => Some(port),
                    None if behind.is_empty() => None,
                    None => return Err(HOST_INVALID),
                };
                (address.to_string(), port)
            }
            None => match text.split_once(':') {
                Some((_, port)) if port.contains(':') => return Err(HOST_INVALID),
                Some((name, port)) => (name.to_owned(), Some(port)),
                None => (text.to_owned(), None),
            },
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
        let port = port.map(port_of).transpose()?;
        Ok(Self { name, port })
    }
}

fn port_of(text: &str) -> Result<u16, Wrong> {
    match number(text).and_then(|port| u16::try_from(port).ok()) {
        Some(port) if port > 0 => Ok(port),
        _ => Err(PORT_INVALID),
    }
}

/// Parses digits only, without a sign.
pub(super) fn number(text: &str) -> Option<u32> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// Decodes percent-encoded text.
pub(super) fn decoded(text: &str) -> Result<String, Wrong> {
    let text = percent_decode_str(text).decode_utf8();
    let text = text.map_err(|_| "a percent-encoded part does not decode to UTF-8")?;
    Ok(text.into_owned())
}

/// The values of these keys, in the order of the keys. Each key may be given once, and no other key.
pub(super) fn query<const N: usize>(
    query: &str,
    keys: [&str; N],
) -> Result<[Option<String>; N], Wrong> {
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
