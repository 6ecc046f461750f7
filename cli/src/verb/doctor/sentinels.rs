//! Whether the sentinels of a URL name the same primary.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::timeout;

use super::check::{Check, Verdict};

/// Host, port and name in `redis+sentinel://[login@]host:port,host:port/name`; `None` for another URL, and for
/// what this cannot ask: sentinels over TLS.
fn parse(url: &str) -> Option<(String, Vec<String>, String)> {
    let rest = url.strip_prefix("redis+sentinel://")?;
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
        password => format!("{}:{password}@", value("sentinel_user")),
    };
    let hosts = hosts.split(',').map(|host| match host.rsplit_once(':') {
        Some(_) => host.to_owned(),
        None => format!("{host}:26379"),
    });
    let name = path.split('/').next().unwrap_or_default();
    Some((login, hosts.collect(), name.to_owned()))
}

pub(super) async fn checks(url: &str, limit: Duration) -> Vec<Check> {
    let Some((login, hosts, name)) = parse(url) else {
        return Vec::new();
    };
    let mut checks = Vec::new();
    let mut views = BTreeSet::new();
    for host in &hosts {
        match timeout(limit, ask(&format!("redis://{login}{host}"), &name)).await {
            Ok(Ok(Some((at, port)))) => {
                views.insert(format!("{at}:{port}"));
            }
            Ok(Ok(None)) => {
                let found = format!("does not know {name}");
                let advice = "monitor the primary there too, or leave this sentinel out of the URL";
                checks.push(Check::wrong("sentinels", Verdict::Fail, found, advice).at(host));
            }
            Ok(Err(_)) | Err(_) => {
                let advice = "a majority of the sentinels must be up for a failover";
                let check = Check::wrong("sentinels", Verdict::Warn, "does not answer", advice);
                checks.push(check.at(host));
            }
        }
    }
    let named: Vec<String> = views.into_iter().collect();
    match &*named {
        [] => {}
        [one] => checks.push(Check::ok("sentinels", format!("name {one}"))),
        several => {
            let found = format!("name different primaries: {}", several.join(", "));
            let advice = "a failover may be under way; if it stays so, the sentinels cannot reach each other";
            checks.push(Check::wrong("sentinels", Verdict::Fail, found, advice));
        }
    }
    checks
}

async fn ask(url: &str, name: &str) -> redis::RedisResult<Option<(String, u16)>> {
    let client = redis::Client::open(url)?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let mut ask = redis::cmd("SENTINEL");
    ask.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    ask.query_async(&mut connection).await
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn sentinels_are_found_in_their_url() {
        let url = "redis+sentinel://u:p@a:1,b/main/3?sentinel_user=w&sentinel_password=x";
        let hosts = vec!["a:1".to_owned(), "b:26379".to_owned()];
        assert_eq!(
            parse(url),
            Some(("w:x@".to_owned(), hosts, "main".to_owned()))
        );
        assert_eq!(parse("redis://a:1"), None);
    }
}
