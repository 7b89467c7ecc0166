//! Node's own `fetch`, which finds the gateway by the variables that a sandbox
//! gets.
//!
//! It runs where `UMWELT_CLIENTS` names a directory with a Node that knows
//! `NODE_USE_ENV_PROXY`; how to make it stands in `tests/clients.rs`.

use std::path::PathBuf;
use std::process::{Command, Output};

use crate::gateway::{Gateway, Setup, https, policy};
use crate::server::Server;

const SCRIPT: &str = "const answer = await fetch(process.argv[1]); console.log(answer.status, await answer.text()); process.exit(answer.ok ? 0 : 1)";

fn node() -> Option<PathBuf> {
    let Some(dir) = std::env::var_os("UMWELT_CLIENTS").map(PathBuf::from) else {
        eprintln!("skipped: UMWELT_CLIENTS does not name a directory with Node");
        return None;
    };
    let node = dir.join("node_modules/node/bin/node");
    assert!(node.exists(), "{node:?} is needed; see tests/clients.rs");
    Some(node)
}

#[test]
fn fetch_of_node_works_with_the_environment_alone() {
    let Some(node) = node() else { return };
    let setup = Setup::new();
    let server = Server::echo(&setup.pki);
    let port = server.port;
    let gateway = setup.start(&policy(&[https("a.example.org", port, &["/ok/*"])], &[]));
    let fetch = |gateway: &Gateway, url: &str| -> Output {
        let mut command = Command::new(&node);
        command
            .args(["--input-type=module", "--eval", SCRIPT, url])
            .env_clear()
            .env("HTTPS_PROXY", format!("http://{}", gateway.proxy))
            .env("NODE_USE_ENV_PROXY", "1")
            .env("NODE_EXTRA_CA_CERTS", gateway.dir.path().join("ca.pem"));
        command.output().unwrap()
    };
    let said = fetch(&gateway, &format!("https://a.example.org:{port}/ok/x"));
    let text = String::from_utf8_lossy(&said.stdout);
    assert!(text.starts_with("200 GET /ok/x"), "{said:?}");
    let said = fetch(&gateway, &format!("https://a.example.org:{port}/no/x"));
    let text = String::from_utf8_lossy(&said.stdout);
    assert!(
        text.starts_with("403 ") && text.contains("\"op\":\"add\""),
        "{said:?}"
    );
    // All that Node tells of a refused CONNECT is its number.
    let said = fetch(&gateway, "https://b.example.org/ok/x");
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(!said.status.success() && text.contains("(403)"), "{said:?}");
    assert_eq!(server.connections(), 1);
}
