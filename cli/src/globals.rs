//! The options that all verbs share.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::output::Colour;
use crate::span;

/// The options of all verbs. No `Debug`: the URL may have a password.
#[derive(Args, Clone)]
pub(crate) struct Globals {
    /// The server: redis://[user:password@]host[:port][/db], rediss:// (TLS), unix:///socket,
    /// redis+cluster://host,host or redis+sentinel://host,host/name. Several URLs, separated by spaces or given
    /// by several options, are the independent servers of a quorum (Redlock).
    #[arg(
        long = "url",
        global = true,
        env = "LOCKSET_URL",
        hide_env_values = true,
        value_delimiter = ' ',
        value_name = "URL",
        help_heading = GLOBAL
    )]
    pub(crate) urls: Vec<String>,
    /// The user of the server, for URLs that name none; its password is in LOCKSET_PASSWORD.
    #[arg(long, global = true, env = "LOCKSET_USER", value_name = "NAME", help_heading = GLOBAL)]
    pub(crate) user: Option<String>,
    /// The prefix of every name, the same as in the programs that share the locks.
    #[arg(long, global = true, env = "LOCKSET_PREFIX", value_name = "TEXT", help_heading = GLOBAL)]
    pub(crate) prefix: Option<String>,
    /// One JSON object a line, for programs.
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) json: bool,
    /// Colours: on a terminal unless NO_COLOR is set, always or never.
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "auto",
        hide_possible_values = true,
        value_name = "WHEN",
        help_heading = GLOBAL
    )]
    pub(crate) color: Colour,
    /// The longest that one step of connecting may take.
    #[arg(long, global = true, default_value = "3s", value_parser = span::read, value_name = "SPAN", help_heading = GLOBAL)]
    pub(crate) connect_timeout: Duration,
    /// With several URLs: the longest lease that any program takes there. A server that was restarted has no
    /// vote for that long.
    #[arg(long, global = true, default_value = "30s", value_parser = span::read, value_name = "SPAN", help_heading = GLOBAL)]
    pub(crate) quorum_lease_max: Duration,
    /// Trust the authorities in this PEM file instead of the system's.
    #[arg(long, global = true, env = "LOCKSET_TLS_CA", value_name = "FILE", help_heading = GLOBAL)]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Present the certificate in this PEM file.
    #[arg(long, global = true, env = "LOCKSET_TLS_CERT", requires = "tls_key", value_name = "FILE", help_heading = GLOBAL)]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The private key of that certificate, a PEM file.
    #[arg(long, global = true, env = "LOCKSET_TLS_KEY", requires = "tls_cert", value_name = "FILE", help_heading = GLOBAL)]
    pub(crate) tls_key: Option<PathBuf>,
    /// Expect this host in the server's certificate.
    #[arg(long, global = true, env = "LOCKSET_TLS_SERVER_NAME", value_name = "HOST", help_heading = GLOBAL)]
    pub(crate) tls_server_name: Option<String>,
}

const GLOBAL: &str = "Options of every verb";
