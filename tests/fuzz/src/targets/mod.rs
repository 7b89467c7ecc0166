//! A name -> the target of this name. Each one takes bytes, and panics where a
//! property does not hold.

mod config;
mod dns;
mod http;
mod inner;
mod lines;
mod nft;
mod path;
mod policy;
mod socks5;
mod tls;

pub(crate) type Target = fn(&[u8]);

/// Each has a folder in tests/fuzz/corpus, which is what `tests/fuzz/run` goes by.
const ALL: [(&str, Target); 15] = [
    ("authority", policy::authority),
    ("chunked", http::chunked),
    ("client_hello", tls::client_hello),
    ("dns", dns::message),
    ("egress_edit", config::egress_edit),
    ("grant_edit", config::grant_edit),
    ("init", inner::init),
    ("lines", lines::lines),
    ("nft", nft::listing),
    ("oci_state", nft::oci_state),
    ("path", path::target),
    ("policy", policy::policy),
    ("request", http::request),
    ("response", http::response),
    ("socks5", socks5::socks5),
];

pub(crate) fn chosen() -> Target {
    let name = std::env::var("UMWELT_FUZZ_TARGET").unwrap_or_default();
    let found = ALL.iter().find(|(known, _)| *known == name);
    found
        .unwrap_or_else(|| panic!("UMWELT_FUZZ_TARGET is {name:?}, which is no target"))
        .1
}
