//! TLS settings beyond the URL, and the meaning of a failed handshake.
//!
//! Invariant: certificates are always verified. No text of a private key is ever shown, not even in the message of a
//! parser that failed on it.

#[cfg(feature = "tls")]
mod security;
#[cfg(feature = "tls")]
mod settings;

use redis::RedisError;

#[cfg(feature = "tls")]
pub(crate) use self::security::Security;
#[cfg(feature = "tls")]
pub use self::settings::Tls;

/// The advice for a connection that failed because of TLS; `None` if it failed for another reason.
#[cfg(not(feature = "tls"))]
pub(super) fn advice(_: &RedisError) -> Option<&'static str> {
    None
}

/// The advice for a connection that failed because of TLS; `None` if it failed for another reason.
#[cfg(feature = "tls")]
pub(super) fn advice(error: &RedisError) -> Option<&'static str> {
    use rustls::{AlertDescription as Alert, CertificateError as Bad, Error};

    Some(match reason(error)? {
        // A bad signature comes from another authority of the same name.
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

/// Whether the error may come from a proxy while the server is away, because it is not about certificates.
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

/// Without TLS, no TLS error occurs.
#[cfg(not(feature = "tls"))]
pub(super) fn may_pass(_: &RedisError) -> bool {
    false
}

/// The cause of a failed handshake, unwrapped from the errors of redis and io.
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

/// A hint for a server that seems to speak TLS while the URL does not.
pub(super) const USE_TLS: &str = " (if it speaks TLS on this port, the URL starts with rediss)";

/// A hint for a URL with TLS and a server without a readable answer.
pub(super) const CHECK_TLS: &str =
    " (does it speak TLS on this port, and does it ask for a client certificate?)";

/// Without TLS there are no settings.
#[cfg(not(feature = "tls"))]
#[derive(Clone, Debug, Default)]
pub(crate) struct Security;

/// Without TLS there is no secured stream.
#[cfg(not(feature = "tls"))]
type Secured = tokio::net::TcpStream;

#[cfg(not(feature = "tls"))]
impl Security {
    /// Fails, because this stream would not be secure.
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
