//! The variables by which programs in a sandbox with egress find the gateway,
//! and believe its certificates. Pure.

use std::net::Ipv4Addr;

use crate::nft::ruleset::GatewayPorts;

/// Where the gateway listens.
pub(crate) const PORTS: GatewayPorts = GatewayPorts {
    dns: 53,
    proxy: 3128,
    socks: 1080,
};

/// Where the roots of the host and the gateway's own are inside.
pub(crate) const BUNDLE: &str = "/etc/ssl/certs/umwelt-ca.pem";

/// Each in the program's own words.
const BUNDLE_VARIABLES: [&str; 11] = [
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "NODE_EXTRA_CA_CERTS",
    "npm_config_cafile",
    "CARGO_HTTP_CAINFO",
    "DENO_CERT",
    "AWS_CA_BUNDLE",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
];

pub(crate) fn variables(
    gateway: Ipv4Addr,
    registries: &[(&'static str, String)],
) -> Vec<(String, String)> {
    let proxy = format!("http://{gateway}:{}", PORTS.proxy);
    // The names are resolved by the gateway, which knows more of them.
    let socks = format!("socks5h://{gateway}:{}", PORTS.socks);
    let local = "localhost,127.0.0.1,::1".to_owned();
    let pairs = [
        ("HTTPS_PROXY", &proxy),
        ("HTTP_PROXY", &proxy),
        ("ALL_PROXY", &socks),
        ("NO_PROXY", &local),
    ];
    let mut variables = Vec::new();
    for (name, value) in pairs {
        variables.push((name.to_owned(), value.clone()));
        variables.push((name.to_ascii_lowercase(), value.clone()));
    }
    let bundle = |name: &&str| ((*name).to_owned(), BUNDLE.to_owned());
    variables.extend(BUNDLE_VARIABLES.iter().map(bundle));
    for (name, value) in [
        ("NODE_USE_ENV_PROXY", "1"),
        ("DENO_TLS_CA_STORE", "system,mozilla"),
        // A refusal is final; pip would try five times more, for eight seconds.
        ("PIP_RETRIES", "2"),
    ] {
        variables.push((name.to_owned(), value.to_owned()));
    }
    variables.push(("GIT_SSH_COMMAND".to_owned(), ssh(gateway)));
    let registries = registries.iter();
    variables.extend(registries.map(|(name, value)| ((*name).to_owned(), value.clone())));
    variables
}

/// ssh has no proxy variable: nc speaks SOCKS5 for it. No configuration is read,
/// as ssh refuses one that belongs to a user whom the sandbox does not know.
fn ssh(gateway: Ipv4Addr) -> String {
    let socks = PORTS.socks;
    // Only words without quotes: git, ssh and two shells take it apart.
    let help = "umwelt: %h port %p was not reached. Where no rule allows it, ask with the egress tool: op add, kind tcp, host %h, port %p";
    format!(
        "ssh -F none -o 'ProxyCommand=sh -c \"nc -N -X 5 -x {gateway}:{socks} %h %p || echo {help} >&2\"'"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_stand_in_both_cases_and_the_bundle_for_each_program() {
        let registries = [("PIP_INDEX_URL", "https://example.org/simple".to_owned())];
        let variables = variables(Ipv4Addr::new(10, 89, 0, 2), &registries);
        let value = |name: &str| {
            let found = variables.iter().find(|(key, _)| key == name);
            found.map(|(_, value)| value.as_str())
        };
        for name in ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"] {
            assert_eq!(value(name), Some("http://10.89.0.2:3128"), "{name}");
        }
        for name in ["ALL_PROXY", "all_proxy"] {
            assert_eq!(value(name), Some("socks5h://10.89.0.2:1080"), "{name}");
        }
        assert_eq!(value("no_proxy"), value("NO_PROXY"));
        for name in BUNDLE_VARIABLES {
            assert_eq!(value(name), Some(BUNDLE), "{name}");
        }
        assert_eq!(value("PIP_INDEX_URL"), Some("https://example.org/simple"));
        let ssh = value("GIT_SSH_COMMAND").unwrap();
        assert!(
            ssh.starts_with("ssh ") && ssh.contains("-x 10.89.0.2:1080 %h %p"),
            "{ssh}"
        );
        let mut names: Vec<&String> = variables.iter().map(|(name, _)| name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count, "a name stands twice");
    }
}
