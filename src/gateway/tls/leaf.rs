//! Host -> the TLS configuration that answers for it, with a certificate of
//! its own. Bounded; all certificates share one key.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, ServerConfig};
use rustls::sign::CertifiedKey;
use rustls::{CipherSuite, RootCertStore};

use crate::gateway::tls::authority::{Authority, CertificateError};
use crate::policy::decide::Host;

const MAX_HOSTS: usize = 1024;
const LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);
/// A certificate is made anew after this, long before it ends.
const FRESH: Duration = Duration::from_secs(24 * 3600);
/// Clocks of containers and hosts differ.
const SLACK: Duration = Duration::from_secs(24 * 3600);

/// All certificates of this gateway.
#[derive(Debug)]
pub(crate) struct Leaves {
    provider: Arc<CryptoProvider>,
    authority: Authority,
    key: KeyPair,
    configs: Mutex<HashMap<Host, (Instant, Arc<ServerConfig>)>>,
}

impl Leaves {
    pub(crate) fn new(
        provider: Arc<CryptoProvider>,
        authority: Authority,
    ) -> Result<Leaves, CertificateError> {
        Ok(Leaves {
            provider: Arc::new(quick_suite_first(&provider)),
            authority,
            key: KeyPair::generate()?,
            configs: Mutex::default(),
        })
    }

    /// What to answer a client that asks for `host`.
    pub(crate) fn config(&self, host: &Host) -> Result<Arc<ServerConfig>, CertificateError> {
        // A poisoned map holds whole entries still.
        let mut configs = self.configs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((made, config)) = configs.get(host)
            && made.elapsed() < FRESH
        {
            return Ok(config.clone());
        }
        let config = Arc::new(self.make_config(host)?);
        if configs.len() >= MAX_HOSTS {
            let other = configs.keys().next().cloned();
            other.and_then(|other| configs.remove(&other));
        }
        configs.insert(host.clone(), (Instant::now(), config.clone()));
        Ok(config)
    }

    fn make_config(&self, host: &Host) -> Result<ServerConfig, CertificateError> {
        let key = PrivateKeyDer::try_from(self.key.serialize_der())
            .map_err(|why| rustls::Error::General(why.to_owned()))?;
        let key = self.provider.key_provider.load_private_key(key)?;
        let chain = vec![self.sign(host)?];
        let answer = Answer {
            host: host.clone(),
            key: Arc::new(CertifiedKey::new(chain, key)),
        };
        let mut config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(answer));
        config.ignore_client_order = true;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // Most programs inside end before they could come back with a ticket,
        // and each new connection would pay for one.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    fn sign(&self, host: &Host) -> Result<CertificateDer<'static>, CertificateError> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![match host {
            Host::Name(name) => SanType::DnsName(name.as_str().try_into()?),
            Host::Address(address) => SanType::IpAddress(*address),
        }];
        let mut name = DistinguishedName::new();
        // A common name has 64 characters at most; nobody matches it any more.
        let common: String = host.to_string().chars().take(64).collect();
        name.push(DnType::CommonName, common);
        params.distinguished_name = name;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let now = SystemTime::now();
        params.not_before = (now - SLACK).into();
        params.not_after = (now + LIFETIME).into();
        let signed = params.signed_by(&self.key, &self.authority.issuer)?;
        Ok(signed.der().clone())
    }

    /// Signs a certificate and verifies it as a client would: the key and the
    /// certificate of the authority belong together, and it has not expired.
    pub(crate) fn check(&self, path: &Path) -> Result<(), CertificateError> {
        let foreign = |why: &dyn std::fmt::Display| CertificateError::Foreign {
            path: path.to_owned(),
            why: why.to_string(),
        };
        if !self.authority.has_key_id() {
            return Err(foreign(&"it has another key identifier"));
        }
        let mut roots = RootCertStore::empty();
        roots
            .add(self.authority.certificate.clone())
            .map_err(|e| foreign(&e))?;
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone())
                .build()
                .map_err(|e| foreign(&e))?;
        let leaf = self.sign(&Host::Address(IpAddr::from([192, 0, 2, 1])))?;
        let name = ServerName::from(IpAddr::from([192, 0, 2, 1]));
        verifier
            .verify_server_cert(&leaf, &[], &name, &[], UnixTime::now())
            .map_err(|e| foreign(&e))?;
        Ok(())
    }
}

/// Most clients name AES-256 with SHA-384 first. Processors have instructions
/// for SHA-256 and none for SHA-384, and a handshake hashes a lot. Servers are
/// asked in the usual order still.
fn quick_suite_first(provider: &CryptoProvider) -> CryptoProvider {
    let mut provider = provider.clone();
    provider
        .cipher_suites
        .sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    provider
}

/// Answers for one host and for no other, whatever was read of the
/// ClientHello before.
#[derive(Debug)]
struct Answer {
    host: Host,
    key: Arc<CertifiedKey>,
}

impl ResolvesServerCert for Answer {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let agrees = match (&self.host, hello.server_name()) {
            (Host::Name(name), Some(sni)) => sni
                .strip_suffix('.')
                .unwrap_or(sni)
                .eq_ignore_ascii_case(name),
            (Host::Address(_), None) => true,
            _ => false,
        };
        agrees.then(|| self.key.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::tls::authority;

    fn leaves(dir: &Path) -> Leaves {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let authority = Authority::load(&dir.join("ca.pem"), &dir.join("ca.key")).unwrap();
        Leaves::new(provider, authority).unwrap()
    }

    fn write(dir: &Path) -> authority::NewAuthority {
        let new = authority::create().unwrap();
        std::fs::write(dir.join("ca.pem"), &new.certificate).unwrap();
        std::fs::write(dir.join("ca.key"), &new.key).unwrap();
        new
    }

    #[test]
    fn an_authority_is_good_for_its_own_key_only() {
        let dir = tempfile::tempdir().unwrap();
        let first = write(dir.path());
        leaves(dir.path()).check(dir.path()).unwrap();
        write(dir.path());
        std::fs::write(dir.path().join("ca.pem"), first.certificate).unwrap();
        let error = leaves(dir.path()).check(dir.path()).unwrap_err();
        assert!(matches!(error, CertificateError::Foreign { .. }), "{error}");
    }

    #[test]
    fn a_host_keeps_its_certificate_and_hosts_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path());
        let leaves = leaves(dir.path());
        let host = Host::Name("a.example.org".to_owned());
        let first = leaves.config(&host).unwrap();
        assert!(Arc::ptr_eq(&first, &leaves.config(&host).unwrap()));
        for number in 0..MAX_HOSTS + 5 {
            leaves
                .config(&Host::Name(format!("h{number}.example.org")))
                .unwrap();
        }
        assert_eq!(leaves.configs.lock().unwrap().len(), MAX_HOSTS);
    }

    #[test]
    fn the_quick_suite_is_first_and_none_is_lost() {
        let before = rustls::crypto::ring::default_provider();
        let after = quick_suite_first(&before);
        let first = after.cipher_suites[0].suite();
        assert_eq!(first, CipherSuite::TLS13_AES_128_GCM_SHA256);
        assert_eq!(after.cipher_suites.len(), before.cipher_suites.len());
    }

    #[test]
    fn unreadable_files_are_named() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path());
        std::fs::write(dir.path().join("ca.key"), "nonsense").unwrap();
        let error =
            Authority::load(&dir.path().join("ca.pem"), &dir.path().join("ca.key")).unwrap_err();
        assert!(error.to_string().contains("ca.key"), "{error}");
        assert!(error.hint().is_some());
    }
}
