//! What `umwelt-init --check-egress` finds behind a gateway.

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::gateway::{Gateway, Setup, https, policy};
use crate::server::{Server, closed_port, read_head};

/// The findings, in the order of `checks`.
fn probe(gateway: &Gateway, checks: &Value) -> Vec<(String, String)> {
    let bundle = gateway.dir.path().join("bundle.pem");
    let read = |name: &str| std::fs::read_to_string(gateway.dir.path().join(name)).unwrap();
    std::fs::write(&bundle, read("roots.pem") + &read("ca.pem")).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_umwelt"))
        .arg0("umwelt-init")
        .arg("--check-egress")
        .env_clear()
        .env("HTTPS_PROXY", format!("http://{}", gateway.proxy))
        .env("ALL_PROXY", format!("socks5h://{}", gateway.socks))
        .env("SSL_CERT_FILE", &bundle)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let order = json!({"checks": checks, "limit_s": 60});
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(order.to_string().as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut findings: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    findings.sort_by_key(|finding| finding["check"].as_u64());
    assert_eq!(findings.len(), checks.as_array().unwrap().len());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let both = findings.iter().map(|f| (text(&f["got"]), text(&f["why"])));
    both.collect()
}

fn request(host: &str, port: u16, path: &str) -> Value {
    json!({"https": {"host": host, "port": port, "path": path}})
}

#[test]
fn verdicts_are_those_of_the_gateway_and_not_of_a_server() {
    let setup = Setup::new();
    let server = Server::echo(&setup.pki);
    let surly = Server::start(&setup.pki, |mut tls, _| {
        if read_head(&mut tls).is_some() {
            let body = "{\"error\":\"egress_denied\"}";
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
            );
            tls.write_all(answer.as_bytes()).unwrap();
        }
    });
    let port = server.port;
    let (_held, nobody) = closed_port();
    let mut tunnel = https("b.example.org", port, &["*"]);
    tunnel["inspect"] = json!(false);
    let mut public = https("x.wild.example.org", port, &["*"]);
    public["private"] = json!(false);
    public["inspect"] = json!(false);
    let rules = [
        https("a.example.org", port, &["/ok/*"]),
        https("a.example.org", surly.port, &["*"]),
        https("a.example.org", nobody, &["*"]),
        tunnel,
        public,
    ];
    let gateway = setup.start(&policy(&rules, &[]));
    let cases = [
        (request("a.example.org", port, "/ok/x"), "allow", "200"),
        (request("a.example.org", port, "/other"), "deny", "path"),
        (request("a.example.org", port, "/ok/..%2fx"), "deny", ""),
        (request("c.example.org", port, "/ok/x"), "deny", ""),
        (request("127.0.0.1", port, "/ok/x"), "deny", ""),
        (request("a.example.org", surly.port, "/"), "allow", "403"),
        (request("a.example.org", nobody, "/"), "failed", ""),
        (request("b.example.org", port, "/any"), "allow", "200"),
        // The address that the name leads to is a private one.
        (request("x.wild.example.org", port, "/"), "deny", ""),
    ];
    let checks: Vec<&Value> = cases.iter().map(|(check, ..)| check).collect();
    let found = probe(&gateway, &json!(checks));
    for ((check, got, why), finding) in cases.iter().zip(&found) {
        assert_eq!(finding.0, *got, "{check}: {}", finding.1);
        assert!(finding.1.contains(why), "{check}: {}", finding.1);
    }
    assert!(server.next_seen().contains("User-Agent: umwelt-verify"));
}

#[test]
fn open_port_is_reached_and_a_closed_one_is_left_to_the_relay() {
    let open = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = open.local_addr().unwrap().port();
    let gateway = Gateway::start(&policy(&[], &[]));
    let tcp = |port: u16| json!({"tcp": {"host": "127.0.0.1", "port": port}});
    let (_held, closed) = closed_port();
    let found = probe(&gateway, &json!([tcp(port), tcp(closed)]));
    assert_eq!(found[0].0, "allow", "{found:?}");
    assert!(found[0].1.contains("directly"), "{found:?}");
    assert_eq!(found[1].0, "deny", "{found:?}");
    assert!(found[1].1.contains("not allowed"), "{found:?}");
}
