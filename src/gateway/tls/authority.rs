//! The certificate authority of one installation: made once, and loaded by the
//! gateway, the only one to hold its key.

use crate::digest::sha256;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// How long a new authority is good for.
const LIFETIME: Duration = Duration::from_secs(825 * 24 * 3600);
/// Clocks of containers and hosts differ.
const SLACK: Duration = Duration::from_secs(24 * 3600);

/// Certificates or keys that cannot be used.
#[derive(Debug)]
pub(crate) enum CertificateError {
    Read {
        path: PathBuf,
        why: String,
    },
    Make(rcgen::Error),
    /// The certificate does not belong to the key, or was made elsewhere.
    Foreign {
        path: PathBuf,
        why: String,
    },
    Tls(rustls::Error),
}

impl fmt::Display for CertificateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CertificateError::Read { path, why } => write!(f, "cannot read {path:?}: {why}"),
            CertificateError::Make(error) => write!(f, "cannot make a certificate: {error}"),
            CertificateError::Foreign { path, why } => {
                write!(
                    f,
                    "the certificate in {path:?} is not that of the authority's key: {why}"
                )
            }
            CertificateError::Tls(error) => write!(f, "cannot set up TLS: {error}"),
        }
    }
}

impl CertificateError {
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            CertificateError::Read { .. } | CertificateError::Foreign { .. } => {
                Some("make the authority anew: umwelt-install install --egress".to_owned())
            }
            CertificateError::Make(_) | CertificateError::Tls(_) => None,
        }
    }
}

impl From<rcgen::Error> for CertificateError {
    fn from(error: rcgen::Error) -> CertificateError {
        CertificateError::Make(error)
    }
}

impl From<rustls::Error> for CertificateError {
    fn from(error: rustls::Error) -> CertificateError {
        CertificateError::Tls(error)
    }
}

/// A new authority, in PEM.
#[derive(Debug)]
pub(crate) struct NewAuthority {
    pub(crate) certificate: String,
    pub(crate) key: String,
    pub(crate) expires: SystemTime,
}

pub(crate) fn create() -> Result<NewAuthority, CertificateError> {
    let key = KeyPair::generate()?;
    let now = SystemTime::now();
    let expires = now + LIFETIME;
    let mut params = params(&key);
    params.not_before = (now - SLACK).into();
    params.not_after = expires.into();
    Ok(NewAuthority {
        certificate: params.self_signed(&key)?.pem(),
        key: key.serialize_pem(),
        expires,
    })
}

/// Its name follows from its key, so that two authorities never share one,
/// and no certificate has to be taken apart to know it.
fn params(key: &KeyPair) -> CertificateParams {
    let digest = sha256(&key.subject_public_key_info());
    let id = digest.get(..16).unwrap_or_default();
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, format!("umwelt egress {id}"));
    let mut params = CertificateParams::default();
    params.distinguished_name = name;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// An authority that signs.
#[derive(Debug)]
pub(crate) struct Authority {
    pub(crate) issuer: Issuer<'static, KeyPair>,
    pub(crate) certificate: CertificateDer<'static>,
    /// As the certificates that it signs name it.
    key_id: Vec<u8>,
}

impl Authority {
    pub(crate) fn load(certificate: &Path, key: &Path) -> Result<Authority, CertificateError> {
        let read = |path: &Path, error: &dyn fmt::Display| CertificateError::Read {
            path: path.to_owned(),
            why: error.to_string(),
        };
        let der = CertificateDer::from_pem_file(certificate).map_err(|e| read(certificate, &e))?;
        let key_der = PrivateKeyDer::from_pem_file(key).map_err(|e| read(key, &e))?;
        let key = KeyPair::try_from(&key_der).map_err(|e| read(key, &e))?;
        Ok(Authority {
            key_id: params(&key).key_identifier(&key),
            issuer: Issuer::new(params(&key), key),
            certificate: der,
        })
    }

    /// Whether its certificate carries the identifier of the key that our
    /// certificates refer to. OpenSSL looks for that, webpki does not.
    pub(crate) fn has_key_id(&self) -> bool {
        let id = self.key_id.as_slice();
        !id.is_empty() && self.certificate.windows(id.len()).any(|bytes| bytes == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::KeyIdMethod;

    #[test]
    fn the_certificate_must_carry_the_identifier_of_its_key() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let key = KeyPair::generate().unwrap();
        std::fs::write(path("ca.key"), key.serialize_pem()).unwrap();
        for (method, expected) in [
            (KeyIdMethod::Sha256, true),
            (KeyIdMethod::PreSpecified(vec![1; 20]), false),
        ] {
            let mut params = params(&key);
            params.key_identifier_method = method;
            let certificate = params.self_signed(&key).unwrap();
            std::fs::write(path("ca.pem"), certificate.pem()).unwrap();
            let authority = Authority::load(&path("ca.pem"), &path("ca.key")).unwrap();
            assert_eq!(authority.has_key_id(), expected);
        }
    }

    #[test]
    fn two_authorities_have_two_names() {
        let name = || {
            let key = KeyPair::generate().unwrap();
            params(&key).distinguished_name
        };
        assert_ne!(name(), name());
    }
}
