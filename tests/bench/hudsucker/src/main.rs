//! A peer for scripts/bench: hudsucker (hyper, rustls) as an intercepting proxy with a host, a
//! path prefix and TCP_NODELAY on both sides, which is the best that its parts can do.
//!
//! usage: umwelt-bench-hudsucker LISTEN CA.pem CA.key ROOTS.pem HOST PATH-PREFIX

use std::error::Error;
use std::sync::Arc;

use hudsucker::certificate_authority::RcgenAuthority;
use hudsucker::hyper::{Method, Request, Response, StatusCode};
use hudsucker::hyper_util::client::legacy::connect::HttpConnector;
use hudsucker::rcgen::{Issuer, KeyPair};
use hudsucker::rustls::crypto::{CryptoProvider, aws_lc_rs};
use hudsucker::rustls::pki_types::{CertificateDer, pem::PemObject};
use hudsucker::rustls::{ClientConfig, RootCertStore};
use hudsucker::{Body, HttpContext, HttpHandler, Proxy, RequestOrResponse};
use hyper_rustls::HttpsConnectorBuilder;
use tokio::net::{TcpListener, TcpSocket};

/// Of a certificate authority; many more than there are hosts.
const CERTIFICATES: u64 = 1000;

#[derive(Clone)]
struct Policy {
    host: Arc<str>,
    prefix: Arc<str>,
}

impl HttpHandler for Policy {
    async fn handle_request(
        &mut self,
        _context: &HttpContext,
        request: Request<Body>,
    ) -> RequestOrResponse {
        let is_connect = request.method() == Method::CONNECT;
        let is_host = request.uri().host() == Some(&*self.host);
        if is_host && (is_connect || request.uri().path().starts_with(&*self.prefix)) {
            return request.into();
        }
        let mut denied = Response::new(Body::empty());
        *denied.status_mut() = StatusCode::FORBIDDEN;
        denied.into()
    }
}

fn client_config(provider: CryptoProvider, roots: &str) -> Result<ClientConfig, Box<dyn Error>> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(roots)? {
        store.add(certificate?)?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(store);
    Ok(config.with_no_client_auth())
}

/// What is accepted has the listener's TCP_NODELAY.
fn listen(address: &str) -> Result<TcpListener, Box<dyn Error>> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.set_nodelay(true)?;
    socket.bind(address.parse()?)?;
    Ok(socket.listen(1024)?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [address, certificate, key, roots, host, prefix] = &words[..] else {
        return Err("usage: LISTEN CA.pem CA.key ROOTS.pem HOST PATH-PREFIX".into());
    };
    let key = KeyPair::from_pem(&std::fs::read_to_string(key)?)?;
    let issuer = Issuer::from_ca_cert_pem(&std::fs::read_to_string(certificate)?, key)?;
    let provider = aws_lc_rs::default_provider;
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(true);
    tcp.enforce_http(false);
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(client_config(provider(), roots)?)
        .https_only()
        .enable_http1()
        .wrap_connector(tcp);
    let proxy = Proxy::builder()
        .with_listener(listen(address)?)
        .with_ca(RcgenAuthority::new(issuer, CERTIFICATES, provider()))
        .with_http_connector(connector)
        .with_http_handler(Policy {
            host: host.as_str().into(),
            prefix: prefix.as_str().into(),
        })
        .build()?;
    Ok(proxy.start().await?)
}
