//! Certificates for tests, with their own authority.
//!
//! Invariant: the keys are generated for one test and are useless outside it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};

/// The certificates of a server and its clients, issued by a private authority.
///
/// The server's certificate is for `127.0.0.1`, `127.0.0.2` and `localhost`.
#[derive(Clone)]
pub struct Certificates {
    ca: String,
    server: Signed,
    client: Signed,
}

/// A certificate and its key, both in PEM.
#[derive(Clone)]
struct Signed {
    certificate: String,
    key: String,
}

impl Certificates {
    /// Creates an authority and certificates that are valid now.
    #[must_use]
    pub fn new() -> Self {
        Self::make(false)
    }

    /// Like [`new`](Self::new), but the server's certificate was only valid in the year 2001.
    #[must_use]
    pub fn expired() -> Self {
        Self::make(true)
    }

    fn make(expired: bool) -> Self {
        let key = KeyPair::generate().expect("the system has random numbers");
        let mut authority = params("lockset test authority");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let ca = authority
            .self_signed(&key)
            .expect("the authority is well-formed")
            .pem();
        let issuer = Issuer::new(authority, key);

        let mut server = params("lockset test server");
        let local = |last| SanType::IpAddress(IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)));
        let name = "localhost".try_into().expect("the name is plain");
        server.subject_alt_names = vec![local(1), local(2), SanType::DnsName(name)];
        // Servers are also clients of each other.
        server.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        if expired {
            server.not_before = date_time_ymd(2001, 1, 1);
            server.not_after = date_time_ymd(2001, 12, 31);
        }
        let mut client = params("lockset test client");
        client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        Self {
            ca,
            server: sign(&server, &issuer),
            client: sign(&client, &issuer),
        }
    }

    /// The authority's certificate, for clients that trust the server.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        &self.ca
    }

    /// A client's certificate.
    #[must_use]
    pub fn client_cert_pem(&self) -> &str {
        &self.client.certificate
    }

    /// The key to [`client_cert_pem`](Self::client_cert_pem).
    #[must_use]
    pub fn client_key_pem(&self) -> &str {
        &self.client.key
    }

    /// The certificate of the server in PEM.
    #[must_use]
    pub fn server_cert_pem(&self) -> &str {
        &self.server.certificate
    }

    /// The key of the server in PEM.
    #[must_use]
    pub fn server_key_pem(&self) -> &str {
        &self.server.key
    }
}

impl Default for Certificates {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Certificates")
            .finish_non_exhaustive()
    }
}

/// Valid from the distant past to the distant future.
fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2120, 1, 1);
    params
}

fn sign(params: &CertificateParams, issuer: &Issuer<'_, KeyPair>) -> Signed {
    let key = KeyPair::generate().expect("the system has random numbers");
    let certificate = params
        .signed_by(&key, issuer)
        .expect("the certificate is well-formed");
    Signed {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    }
}
