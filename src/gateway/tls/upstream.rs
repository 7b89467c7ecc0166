//! The roots file of the host -> how servers are verified.

use std::path::Path;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use crate::gateway::tls::authority::CertificateError;
use crate::policy::decide::Host;

const SESSIONS: usize = 256;

/// TLS 1.2 and 1.3, HTTP/1.1 only, no client certificate.
pub(crate) fn config(
    provider: Arc<CryptoProvider>,
    roots: &Path,
) -> Result<ClientConfig, CertificateError> {
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(load(roots)?)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.resumption = Resumption::in_memory_sessions(SESSIONS);
    Ok(config)
}

fn load(path: &Path) -> Result<RootCertStore, CertificateError> {
    let unreadable = |why: String| CertificateError::Read {
        path: path.to_owned(),
        why,
    };
    let mut roots = RootCertStore::empty();
    let certificates =
        CertificateDer::pem_file_iter(path).map_err(|error| unreadable(error.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| unreadable(error.to_string()))?;
        // Bundles hold old roots that no strict parser takes.
        if let Err(error) = roots.add(certificate) {
            log::debug!("a root in {path:?} is left out: {error}");
        }
    }
    match roots.is_empty() {
        true => Err(unreadable("it holds no usable certificate".to_owned())),
        false => Ok(roots),
    }
}

/// The name that the server's certificate must be for.
pub(crate) fn server_name(host: &Host) -> Result<ServerName<'static>, String> {
    match host {
        Host::Name(name) => ServerName::try_from(name.clone()).map_err(|error| error.to_string()),
        Host::Address(address) => Ok(ServerName::from(*address)),
    }
}
