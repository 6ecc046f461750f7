//! What a URL may say, and errors that show the right form without repeating a password.

use redis::{ConnectionInfo, IntoConnectionInfo};

use super::nodes::Address;
use crate::error::{Error, Result};

const FORMS: &str = "use redis://[user:password@]host[:port][/db] or \
                     unix:///path/to/socket[?db=0&user=..&pass=..]";

/// What a URL stands for.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Single(ConnectionInfo),
    /// A cluster, known by some of its nodes.
    Cluster {
        seeds: Vec<Address>,
        /// How to connect to each node: user, password, TLS.
        model: ConnectionInfo,
    },
    /// A primary with replicas, followed through failovers by asking sentinels.
    Sentinel {
        sentinels: Vec<Address>,
        /// The name under which the sentinels watch the primary.
        primary: String,
        /// How to connect to a sentinel.
        sentinel_model: ConnectionInfo,
        /// How to connect to a server.
        model: ConnectionInfo,
    },
}

pub(crate) fn parse(url: &str) -> Result<Target> {
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    match scheme {
        "redis" | "valkey" | "unix" | "redis+unix" | "valkey+unix" => {}
        "rediss" | "valkeys" => {
            return Err(Error::invalid(
                "connect",
                "this version of lockset does not speak TLS; use redis:// over a private network",
            ));
        }
        "redis+cluster" | "rediss+cluster" | "redis+sentinel" | "rediss+sentinel" => {
            return Err(Error::invalid(
                "connect",
                "this version of lockset speaks to a single server; use redis://",
            ));
        }
        _ => {
            return Err(Error::invalid(
                "connect",
                format!("the URL does not start with a scheme lockset knows; {FORMS}"),
            ));
        }
    }
    // The parser's own message may repeat parts of the URL, and with them a password.
    url.into_connection_info()
        .map(Target::Single)
        .map_err(|_| Error::invalid("connect", format!("the URL cannot be read; {FORMS}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_url_is_told_how_to_be_right_and_never_repeated() {
        for bad in [
            "",
            "localhost:6379",
            "http://u:s3cret@h",
            "redis://u:s3cret@h:port",
            "rediss://u:s3cret@h",
            "redis+cluster://u:s3cret@h",
        ] {
            let error = parse(bad).unwrap_err();
            assert!(error.is_invalid(), "{bad}");
            let told = format!("{error} {error:?}");
            assert!(told.contains("redis://"), "{told}");
            assert!(!told.contains("s3cret"), "{told}");
        }
        for good in [
            "redis://h",
            "redis://u:p@h:1/2",
            "unix:///tmp/s",
            "redis://[::1]:7",
        ] {
            assert!(parse(good).is_ok(), "{good}");
        }
    }
}
