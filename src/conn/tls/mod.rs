//! What a client needs for TLS beyond the URL, and what a handshake that fails means.
//!
//! Invariant: a certificate is always checked. No text of a private key is ever shown, not even as
//! the words of a parser that could not read it.

#[cfg(feature = "tls")]
mod security;
#[cfg(feature = "tls")]
mod settings;

use redis::RedisError;

#[cfg(feature = "tls")]
pub(crate) use self::security::Security;
#[cfg(feature = "tls")]
pub use self::settings::Tls;

/// What to do about a connection that could not be made because of TLS; `None` if that was not it.
#[cfg(not(feature = "tls"))]
pub(super) fn advice(_: &RedisError) -> Option<&'static str> {
    None
}

/// What to do about a connection that could not be made because of TLS; `None` if that was not it.
#[cfg(feature = "tls")]
pub(super) fn advice(error: &RedisError) -> Option<&'static str> {
    use rustls::{AlertDescription as Alert, CertificateError as Bad, Error};

    Some(match reason(error)? {
        // A bad signature: of an authority of the same name.
        Error::InvalidCertificate(Bad::UnknownIssuer | Bad::BadSignature) => {
            "the server's certificate is not from a trusted authority; give the authority's \
             certificate with Tls::root_certificates_pem, or check that this is your \
             server"
        }
        Error::InvalidCertificate(Bad::Expired | Bad::ExpiredContext { .. }) => {
            "the server's certificate has expired; renew it, or check the clock of this machine"
        }
        Error::InvalidCertificate(Bad::NotValidYet | Bad::NotValidYetContext { .. }) => {
            "the server's certificate is not valid yet; check the clock of this machine"
        }
        Error::InvalidCertificate(Bad::NotValidForName | Bad::NotValidForNameContext { .. }) => {
            "the server's certificate is for another host; connect by a name or address that it \
             lists, or check that this is your server"
        }
        Error::InvalidCertificate(_) => "the server's certificate cannot be trusted; check it",
        Error::AlertReceived(
            Alert::CertificateRequired
            | Alert::HandshakeFailure
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::DecryptError
            | Alert::AccessDenied,
        ) => {
            "the server refuses this client; give a certificate that it trusts with \
             Tls::client_certificate_pem"
        }
        Error::InvalidMessage(_) => {
            "the server does not speak TLS on this port; connect to its TLS port, or use a URL \
             without TLS"
        }
        _ => "the TLS handshake failed; check versions and certificates on both sides",
    })
}

/// Whether that may be said by something else than the server itself, while it is away: it is not about
/// certificates.
#[cfg(feature = "tls")]
pub(super) fn may_pass(error: &RedisError) -> bool {
    use rustls::{AlertDescription as Alert, Error};

    matches!(
        reason(error),
        Some(
            Error::InvalidMessage(_)
                | Error::AlertReceived(
                    Alert::InternalError | Alert::UserCanceled | Alert::CloseNotify
                )
        )
    )
}

/// Without TLS nothing of it fails.
#[cfg(not(feature = "tls"))]
pub(super) fn may_pass(_: &RedisError) -> bool {
    false
}

/// Why the handshake failed: the error that redis and io wrapped.
#[cfg(feature = "tls")]
fn reason(error: &RedisError) -> Option<&rustls::Error> {
    use std::error::Error;
    use std::io;
    use std::sync::Arc;

    let source = error.source()?;
    let source: &(dyn Error + 'static) =
        match source.downcast_ref::<Arc<dyn Error + Send + Sync + 'static>>() {
            Some(shared) => &**shared,
            None => source,
        };
    match source.downcast_ref::<io::Error>() {
        Some(io) => io.get_ref()?.downcast_ref(),
        None => source.downcast_ref(),
    }
}

/// A hint for when a server seems to speak TLS and the URL does not.
pub(super) const USE_TLS: &str = " (if it speaks TLS on this port, the URL starts with rediss)";

/// A hint for when the URL is one with TLS and the server says nothing that can be read.
pub(super) const CHECK_TLS: &str =
    " (does it speak TLS on this port, and does it ask for a client certificate?)";

/// Without TLS there is nothing to prove, and nobody to prove it.
#[cfg(not(feature = "tls"))]
#[derive(Clone, Debug, Default)]
pub(crate) struct Security;

/// Without TLS there is no such stream.
#[cfg(not(feature = "tls"))]
type Secured = tokio::net::TcpStream;

#[cfg(not(feature = "tls"))]
impl Security {
    /// Refuses: this stream would not be secure.
    #[expect(clippy::unused_async, reason = "as with the feature")]
    pub(super) async fn secure(
        &self,
        _: &str,
        _: tokio::net::TcpStream,
    ) -> Result<Secured, RedisError> {
        let what = "TLS needs the feature tls";
        Err((redis::ErrorKind::InvalidClientConfig, what).into())
    }
}
