//! Checks whether the sentinels of a URL name the same primary.

use std::collections::BTreeSet;

use redis::{ClientTlsConfig, ErrorKind, RedisError, TlsCertificates};
use tokio::time::timeout;

use super::check::{Check, Verdict};
use crate::connect::{Certificates, Context};
use crate::failure::Failure;
use crate::output::shown;

/// The sentinels of a URL.
#[derive(Debug, PartialEq, Eq)]
struct Named {
    scheme: &'static str,
    /// The login of the sentinels, encoded for a URL.
    login: String,
    hosts: Vec<String>,
    primary: String,
}

/// The sentinels of `redis+sentinel://[login@]host:port,host:port/name`; `None` for another URL.
fn parse(url: &str) -> Option<Named> {
    let (scheme, rest) = url.split_once("://")?;
    let scheme = match &*scheme.to_ascii_lowercase() {
        "redis+sentinel" | "valkey+sentinel" => "redis",
        "rediss+sentinel" | "valkeys+sentinel" => "rediss",
        _ => return None,
    };
    let (hosts, path) = rest.split_once('/')?;
    let hosts = hosts.rsplit_once('@').map_or(hosts, |(_, hosts)| hosts);
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let value = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs
            .find(|(key, _)| *key == name)
            .map_or("", |(_, value)| value)
    };
    let login = match value("sentinel_password") {
        "" => String::new(),
        // A plus is a space, as in a form.
        password => format!("{}:{password}@", value("sentinel_user")).replace('+', "%20"),
    };
    let hosts = hosts.split(',').map(|host| {
        let behind = host.rsplit_once(']').map_or(host, |(_, behind)| behind);
        if behind.contains(':') {
            host.to_owned()
        } else {
            format!("{host}:26379")
        }
    });
    let primary = path.split('/').next().unwrap_or_default();
    Some(Named {
        scheme,
        login,
        hosts: hosts.collect(),
        primary: primary.to_owned(),
    })
}

/// The checks of each sentinel; none if the URL names no sentinel.
pub(super) async fn checks(url: &str, context: &Context) -> Result<Vec<Check>, Failure> {
    let Some(named) = parse(url) else {
        return Ok(Vec::new());
    };
    if named.scheme == "rediss" && context.has_server_name() {
        let found = "not asked one by one: their certificates are for another host";
        let advice = "leave out --tls-server-name where it is not needed, to have them compared";
        return Ok(vec![Check::wrong(
            "sentinels",
            Verdict::Warn,
            found,
            advice,
        )]);
    }
    let mut checks = Vec::new();
    let mut views = BTreeSet::new();
    for host in &named.hosts {
        let asked = ask(&named, host, context.certificates()?);
        let check = match timeout(context.connect_timeout(), asked).await {
            Ok(Ok(Some((at, port)))) => {
                views.insert(format!("{at}:{port}"));
                continue;
            }
            Ok(Ok(None)) => {
                let found = format!("does not know {}", shown(&named.primary));
                let advice = "monitor the primary there too, or leave this sentinel out of the URL";
                Check::wrong("sentinels", Verdict::Fail, found, advice)
            }
            Ok(Err(error)) => failed(&error),
            Err(_) => silent("does not answer in time".to_owned()),
        };
        checks.push(check.at(host));
    }
    let views: Vec<String> = views.into_iter().collect();
    match &*views {
        [] => {}
        [one] => checks.push(Check::ok("sentinels", format!("name {one}"))),
        several => {
            let found = format!("name different primaries: {}", several.join(", "));
            let advice = "a failover may be under way; if it stays so, the sentinels cannot reach each other";
            checks.push(Check::wrong("sentinels", Verdict::Fail, found, advice));
        }
    }
    Ok(checks)
}

fn failed(error: &RedisError) -> Check {
    let refusals = ["NOAUTH", "WRONGPASS"];
    let is_refused = error.code().is_some_and(|code| refusals.contains(&code));
    if is_refused || error.kind() == ErrorKind::AuthenticationFailed {
        let advice = "sentinels have a login of their own: give it in the URL, \
            ?sentinel_user=..&sentinel_password=..";
        return Check::wrong("sentinels", Verdict::Fail, "refuses the login", advice);
    }
    if error.code() == Some("NOPERM") {
        let advice = "docs/rights.md lists what a user of the sentinels needs";
        return Check::wrong("sentinels", Verdict::Fail, "refuses to tell", advice);
    }
    silent(format!("does not answer: {}", shown(&error.to_string())))
}

fn silent(found: String) -> Check {
    let advice = "a majority of the sentinels must be up for a failover";
    Check::wrong("sentinels", Verdict::Warn, found, advice)
}

async fn ask(
    named: &Named,
    host: &str,
    certificates: Certificates,
) -> redis::RedisResult<Option<(String, u16)>> {
    let url = format!("{}://{}{host}", named.scheme, named.login);
    let client = match named.scheme {
        "rediss" => redis::Client::build_with_tls(url, given(certificates))?,
        _ => redis::Client::open(url)?,
    };
    let mut connection = client.get_multiplexed_async_connection().await?;
    let mut ask = redis::cmd("SENTINEL");
    ask.arg("GET-MASTER-ADDR-BY-NAME").arg(&named.primary);
    ask.query_async(&mut connection).await
}

fn given(Certificates { roots, client }: Certificates) -> TlsCertificates {
    TlsCertificates {
        client_tls: client.map(|(client_cert, client_key)| ClientTlsConfig {
            client_cert,
            client_key,
        }),
        root_cert: roots,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentinels_are_found_in_their_url() {
        let url = "redis+sentinel://u:p@a:1,b,[::1]/main/3?sentinel_user=w&sentinel_password=x+y";
        let hosts = ["a:1", "b:26379", "[::1]:26379"].map(str::to_owned);
        let named = Named {
            scheme: "redis",
            login: "w:x%20y@".to_owned(),
            hosts: hosts.to_vec(),
            primary: "main".to_owned(),
        };
        assert_eq!(parse(url), Some(named));
        let secure = parse("VALKEYS+sentinel://a/main").unwrap();
        assert_eq!((secure.scheme, &*secure.login), ("rediss", ""));
        assert_eq!(parse("redis://a:1"), None);
    }
}
