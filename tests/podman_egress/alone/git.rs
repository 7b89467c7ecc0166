//! git over https and over ssh, with nothing but the environment that a command
//! gets.

use serde_json::json;

use crate::clients::denied;
use crate::podman_common::{Client, PATIENCE, Sandbox, host, wait_for};
use crate::world::{Internet, NAME};

const RULES: &str = "[[egress.https]]\nhost = \"a.example.org\"\npaths = [\"/ok/git/demo.git/*\"]\nprivate = true\n[[egress.tcp]]\nhost = \"a.example.org\"\nport = 22\nprivate = true\n";
const COMMIT: &str = "head -c 2M /dev/urandom >new.bin && git add new.bin && git -c user.name=t -c user.email=t@example.org commit -qm more";

#[test]
fn git_clones_and_pushes_over_https_and_ssh() {
    if !host::qualifies() {
        return;
    }
    let internet = Internet::start_with_git();
    let sandbox = Sandbox::start_at(internet.place(RULES));
    let mut client = sandbox.client();
    over_https(&internet, &mut client);
    place_keys(&internet, &sandbox, &mut client);
    over_ssh(&internet, &mut client);
    sandbox.end_and_check();
}

fn over_https(internet: &Internet, client: &mut Client) {
    // As a credential helper does it: asked after the first 401.
    let helper = "-c 'credential.helper=!f() { echo username=user; echo password=secret; }; f'";
    let url = format!("https://{NAME}/ok/git/demo.git");
    client.output(&format!("git {helper} clone -q {url} https"));
    let said = client.output("cd https && git fsck && du -sm . | cut -f1");
    assert!(
        said.trim().lines().last().unwrap().parse::<u32>().unwrap() > 12,
        "{said}"
    );
    client.output(&format!(
        "cd https && {COMMIT} && git {helper} push -q origin main:https"
    ));
    let said = internet.said();
    for line in [
        "GET /ok/git/demo.git/info/refs nobody version=2",
        "GET /ok/git/demo.git/info/refs login version=2",
        "POST /ok/git/demo.git/git-upload-pack login version=2",
    ] {
        assert!(said.contains(line), "no {line:?} in: {said}");
    }
    let is_push = |line: &str| line.contains("git-receive-pack login") && line.ends_with("chunked");
    assert!(said.lines().any(is_push), "{said}");
    // git shows the whole answer where it is about a path.
    let said = denied(
        client,
        &format!("git clone https://{NAME}/ok/git/other.git"),
    );
    for word in ["egress_denied", "\"op\":\"add\"", "403"] {
        assert!(said.contains(word), "no {word:?} in: {said}");
    }
    let said = denied(client, "git clone https://b.example.org/x.git");
    assert!(said.contains("403"), "{said}");
}

/// As if they were granted.
fn place_keys(internet: &Internet, sandbox: &Sandbox, client: &mut Client) {
    let read = |name: &str| std::fs::read_to_string(internet.path(name)).unwrap();
    let host_key = read("host_key.pub");
    let known: String = [NAME.to_owned(), format!("[{}]:2222", internet.address)]
        .map(|name| format!("{name} {host_key}"))
        .concat();
    std::fs::write(sandbox.workspace().join("known_hosts"), known).unwrap();
    std::fs::write(sandbox.workspace().join("id_ed25519"), read("key")).unwrap();
    client.output(
        "install -d -m 0700 ~/.ssh && mv known_hosts id_ed25519 ~/.ssh/ && chmod 600 ~/.ssh/*",
    );
}

fn over_ssh(internet: &Internet, client: &mut Client) {
    let clone = |client: &mut Client, address: &str, folder: &str| {
        let url = format!("ssh://root@{address}/repositories/small.git");
        client.output(&format!("git clone -q {url} {folder}"));
        client.output(&format!(
            "cd {folder} && {COMMIT} && git push -q origin HEAD:{folder}"
        ));
    };
    // The relay serves direct targets too; without it the kernel lets them through.
    clone(client, NAME, "direct");
    let plain =
        format!("GIT_SSH_COMMAND=ssh git ls-remote ssh://root@{NAME}/repositories/small.git");
    assert!(client.output(&plain).contains("refs/heads/direct"));

    let address = internet.address.clone();
    let said = denied(
        client,
        &format!("git clone ssh://root@{address}:2222/repositories/small.git"),
    );
    let words = [
        "not allowed",
        "egress tool",
        &format!("host {address}, port 2222"),
    ];
    for word in words {
        assert!(said.contains(word), "no {word:?} in: {said}");
    }
    let rule = json!({"op": "add", "kind": "tcp", "host": address, "port": 2222});
    client
        .call("egress", rule)
        .unwrap_or_else(|error| panic!("{error}"));
    wait_for("the relay", PATIENCE, || {
        let url = format!("ssh://root@{address}:2222/repositories/small.git");
        (client.shell(&format!("git ls-remote {url}"))["code"] == 0).then_some(())
    });
    clone(client, &format!("{address}:2222"), "relayed");
    let kept = client.output(&format!(
        "git ls-remote ssh://root@{NAME}/repositories/small.git"
    ));
    for branch in ["main", "direct", "relayed"] {
        assert!(kept.contains(&format!("refs/heads/{branch}")), "{kept}");
    }
}
