//! `[[egress.expect]]`: tried when somebody asks, and at the start.

use serde_json::{Value, json};

use crate::alone::refusals::refusal;
use crate::podman_common::{PATIENCE, Sandbox, host, sandbox::Place, wait_for};
use crate::world::{Internet, NAME, trust};

const RULES: &str = "[[egress.https]]\nhost = \"a.example.org\"\npaths = [\"/ok/*\"]\nprivate = true\n\
                     [[egress.tcp]]\nhost = \"a.example.org\"\nport = 80\nprivate = true\n";

fn expect(url: &str, verdict: &str) -> String {
    format!("[[egress.expect]]\nurl = \"{url}\"\nverdict = \"{verdict}\"\n")
}

/// Exit code and stdout of `umwelt-ctl egress ARGS WORKSPACE`.
fn egress(place: &Place, args: &[&str]) -> (i32, String) {
    let mut command = place.applet("umwelt-ctl");
    command.arg("egress").args(args).arg(&place.workspace);
    let output = command.output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let code = output.status.code().unwrap();
    assert!(
        code != 2,
        "{args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    (code, stdout)
}

fn verify(place: &Place) -> (i32, Vec<Value>) {
    let (code, text) = egress(place, &["verify", "--json"]);
    let reply: Value = serde_json::from_str(&text).unwrap();
    (code, reply["checks"].as_array().unwrap().clone())
}

fn got(checks: &[Value]) -> Vec<&str> {
    let got = checks.iter().map(|check| check["got"].as_str().unwrap());
    got.collect()
}

#[test]
fn expectations_are_tried_from_inside_by_every_way_out() {
    if !host::qualifies() {
        return;
    }
    let internet = Internet::shared();
    let expected: Vec<String> = [
        (format!("https://{NAME}/ok/x"), "allow"),
        (format!("https://{NAME}/other"), "deny"),
        ("https://b.example.org/".to_owned(), "deny"),
        (format!("https://{}/ok/x", internet.address), "deny"),
        (format!("tcp://{NAME}:80"), "allow"),
        (format!("tcp://{NAME}:81"), "deny"),
        (format!("tcp://{NAME}:443"), "deny"),
        ("tcp://b.example.org:22".to_owned(), "deny"),
        (format!("tcp://{}:80", internet.address), "allow"),
    ]
    .iter()
    .map(|(url, verdict)| expect(url, verdict))
    .collect();
    let sandbox = Sandbox::start_at(internet.place(&format!("{RULES}{}", expected.concat())));
    let place = sandbox.place.clone();
    let (code, checks) = verify(&place);
    let wanted = [
        "allow", "deny", "deny", "deny", "allow", "deny", "deny", "deny", "allow",
    ];
    assert_eq!(got(&checks), wanted, "{checks:#?}");
    assert_eq!(code, 0);
    assert!(
        checks.iter().all(|check| check["ok"] == true),
        "{checks:#?}"
    );
    // No process of the prober stays.
    assert_eq!(sandbox.processes(), Vec::<u32>::new());

    // A change is not checked by itself, and says so.
    let (code, said) = egress(&place, &["remove", "https", NAME]);
    assert!(code == 0 && said.contains("egress verify"), "{said}");
    let added = ["add", "tcp", &internet.address, "81", "--private"];
    let (code, said) = egress(&place, &added);
    assert!(code == 0 && said.contains("SOCKS5"), "{said}");
    let (_, rules) = egress(&place, &["list"]);
    assert!(
        rules.contains("relayed") && rules.contains("direct"),
        "{rules}"
    );
    let mut journal = sandbox.entries();
    journal.retain(|entry| entry["kind"] == "egress");
    let told: Vec<_> = journal
        .iter()
        .map(|entry| (&entry["op"], &entry["applied"]))
        .collect();
    let expected =
        [("remove", "live"), ("add", "relayed")].map(|(op, how)| (json!(op), json!(how)));
    assert_eq!(told, expected.each_ref().map(|(op, how)| (op, how)));
    let code = wait_for("the changed rules", PATIENCE, || {
        let (code, checks) = verify(&place);
        (checks[0]["got"] == "deny").then_some(code)
    });
    assert_eq!(code, 1);
    let (code, table) = egress(&place, &["verify"]);
    assert_eq!(code, 1);
    assert!(
        table.contains("DIFFERS") && table.contains("8 of 9"),
        "{table}"
    );
    sandbox.end_and_check();
}

#[test]
fn start_is_refused_where_the_network_is_not_as_expected() {
    if !host::qualifies() {
        return;
    }
    let internet = Internet::shared();
    let url = format!("https://{NAME}/other");
    let rules = |verdict| {
        format!(
            "verify_at_start = true\n{RULES}{}{}",
            expect(&format!("https://{NAME}/ok/x"), "allow"),
            expect(&url, verdict)
        )
    };
    let place = internet.place(&rules("allow"));
    let said = refusal(&place);
    let line = format!("{url}  expected: allow  got: deny");
    assert!(
        said.contains(&line) && said.contains("verify_at_start"),
        "{said}"
    );
    assert!(!said.contains("/ok/x"), "{said}");

    let file = place.workspace.join(".umwelt.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let (before, after) = text.split_once(&expect(&url, "allow")).unwrap();
    std::fs::write(&file, format!("{before}{}{after}", expect(&url, "deny"))).unwrap();
    trust(&place);
    let sandbox = Sandbox::start_at(place);
    assert_eq!(sandbox.client().output("echo ready"), "ready\n");
    sandbox.end_and_check();
}
