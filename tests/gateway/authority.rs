//! Certificates for tests: the gateway's authority, and the one that the
//! servers have theirs from.

use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};

/// Names that the servers' certificate is good for.
const NAMES: [&str; 6] = [
    "a.example.org",
    "b.example.org",
    "x.wild.example.org",
    "127.0.0.1",
    "127.0.0.2",
    "::1",
];

pub(crate) struct Pki {
    /// What clients of the gateway trust.
    pub(crate) gateway: CertificateDer<'static>,
    /// What the gateway trusts.
    pub(crate) root: CertificateDer<'static>,
    pub(crate) server: CertificateDer<'static>,
    pub(crate) server_key: Vec<u8>,
}

fn authority(prefix: &str) -> (CertificateParams, KeyPair) {
    let key = KeyPair::generate().unwrap();
    // As `umwelt-install` names it: after the key.
    let digest = Sha256::digest(key.subject_public_key_info());
    let id: String = digest
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, format!("{prefix} {id}"));
    let mut params = CertificateParams::default();
    params.distinguished_name = name;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    (params, key)
}

impl Pki {
    /// Writes `ca.pem`, `ca.key` and `roots.pem`.
    pub(crate) fn create(dir: &Path) -> Pki {
        let (params, key) = authority("umwelt egress");
        let gateway = params.self_signed(&key).unwrap();
        std::fs::write(dir.join("ca.pem"), gateway.pem()).unwrap();
        std::fs::write(dir.join("ca.key"), key.serialize_pem()).unwrap();
        let (root_params, root_key) = authority("test root");
        let root = root_params.self_signed(&root_key).unwrap();
        std::fs::write(dir.join("roots.pem"), root.pem()).unwrap();
        let server_key = KeyPair::generate().unwrap();
        let server = CertificateParams::new(NAMES.map(str::to_owned).to_vec())
            .unwrap()
            .signed_by(&server_key, &Issuer::new(root_params, root_key))
            .unwrap();
        Pki {
            gateway: gateway.der().clone(),
            root: root.der().clone(),
            server: server.der().clone(),
            server_key: server_key.serialize_der(),
        }
    }

    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::try_from(self.server_key.clone()).unwrap()
    }
}
