//! egress: rules in the workspace file where nothing runs, and what a control
//! plane is asked otherwise.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::home::Home;

const TEXT: &str = "# mine\n[egress]\nenabled = true\n";

fn file(home: &Home) -> PathBuf {
    PathBuf::from(&home.workspace).join(".umwelt.toml")
}

fn text(home: &Home) -> String {
    std::fs::read_to_string(file(home)).unwrap()
}

/// A home whose registries are no matter, with a file that was accepted.
fn home() -> Home {
    let home = Home::new();
    std::fs::create_dir_all(home.path("config/umwelt")).unwrap();
    let base = "[egress]\nregistries = []\n[[egress.https]]\nhost = \"base.example.org\"\n";
    std::fs::write(home.path("config/umwelt/umwelt.toml"), base).unwrap();
    std::fs::write(file(&home), TEXT).unwrap();
    assert_eq!(home.run(&["trust", "--yes", &home.workspace]).code, Some(0));
    home
}

#[test]
fn without_a_sandbox_the_file_is_changed_and_stays_accepted() {
    let home = home();
    let run = |words: &str| {
        let mut args = vec!["egress"];
        args.extend(words.split(' '));
        args.push(&home.workspace);
        let ran = home.run(&args);
        assert_eq!(ran.code, Some(0), "{words}: {ran:?}");
        ran.text().to_owned()
    };
    let add = "add https a.example.org --port 8443 --path /x --path /y/* --method GET --private";
    let said = run(add);
    assert!(said.contains("written to .umwelt.toml"), "{said}");
    assert!(said.contains("next start"), "{said}");
    let rule = "[[egress.https]]\nhost = \"a.example.org\"\nport = 8443\npaths = [\"/x\", \"/y/*\"]\nmethods = [\"GET\"]\nprivate = true\n";
    assert_eq!(text(&home), format!("{TEXT}\n{rule}"));
    assert!(run(add).contains("nothing was changed"));
    assert!(run("add https base.example.org").contains("already, from the base config"));
    run("add tcp b.example.org:22");
    assert!(run("add tcp b.example.org 22").contains("nothing was changed"));
    run("add https c.example.org --no-inspect");
    assert!(text(&home).contains("inspect = false"));
    let trust = home.run(&["trust", "--diff", &home.workspace]);
    assert!(trust.text().contains("is accepted as it is"), "{trust:?}");

    let list = run("list");
    for part in [
        "network  egress",
        "base.example.org",
        "/x /y/* by GET",
        "b.example.org",
    ] {
        assert!(list.contains(part), "{part}: {list}");
    }
    let json: Value = serde_json::from_str(&run("list --json")).unwrap();
    let sources: Vec<&str> = json["rules"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| rule["source"].as_str().unwrap())
        .collect();
    assert_eq!(
        sources.iter().filter(|source| **source == "base").count(),
        1
    );

    run("remove https a.example.org --port 8443 --path /y/* --path /x");
    run("remove tcp b.example.org 22");
    run("remove https c.example.org");
    assert_eq!(text(&home), TEXT);
    let none = home.run(&[
        "egress",
        "remove",
        "tcp",
        "b.example.org",
        "22",
        &home.workspace,
    ]);
    assert_eq!(none.code, Some(1));
    assert!(none.stderr.contains("no rule for"), "{none:?}");
    let log = home.run(&["log", "--json", &home.workspace]);
    let told: Vec<String> = log
        .text()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|entry| entry["kind"] == "egress")
        .map(|entry| format!("{} {} {}", entry["op"], entry["applied"], entry["rule"]))
        .map(|line| line.replace('"', ""))
        .collect();
    assert_eq!(
        told,
        [
            "add next_start https://a.example.org:8443 below /x, /y/* with GET, also at a private address",
            "add next_start tcp://b.example.org:22",
            "add next_start https://c.example.org/* without inspection",
            "remove next_start https://a.example.org:8443 below /y/*, /x",
            "remove next_start tcp://b.example.org:22",
            "remove next_start https://c.example.org",
        ]
    );
    let base = home.run(&[
        "egress",
        "remove",
        "https",
        "base.example.org",
        &home.workspace,
    ]);
    assert!(
        base.stderr.contains("only rules of the workspace file"),
        "{base:?}"
    );
}

#[test]
fn list_says_in_words_that_there_is_no_network() {
    let home = Home::new();
    let none = home.run(&["egress", "list", &home.workspace]);
    assert_eq!(none.code, Some(0), "{none:?}");
    let words = "network  none: programs in the sandbox reach no host";
    assert!(none.text().starts_with(words), "{none:?}");
    assert!(
        none.text().contains("write enabled = true below [egress]"),
        "{none:?}"
    );
    std::fs::write(file(&home), TEXT).unwrap();
    std::fs::create_dir_all(home.path("config/umwelt")).unwrap();
    let base = "[egress]\nregistries = []\n";
    std::fs::write(home.path("config/umwelt/umwelt.toml"), base).unwrap();
    assert_eq!(home.run(&["trust", "-y", &home.workspace]).code, Some(0));
    let list = home.run(&["egress", "list", &home.workspace]);
    assert_eq!(
        list.text(),
        "network  egress, without a rule: no host is reached\n"
    );
}

#[test]
fn the_way_to_a_network_is_told_once() {
    let home = Home::new();
    let add = ["egress", "add", "tcp", "a.example.org:22", &home.workspace];
    let added = home.run(&add);
    assert_eq!(added.code, Some(0), "{added:?}");
    assert!(
        !added.text().contains("from its next start on"),
        "{added:?}"
    );
    assert!(
        added.text().contains("write enabled = true below [egress]"),
        "{added:?}"
    );
    std::fs::write(file(&home), "[egress]\nenabled = true\n").unwrap();
    let list = home.run(&["egress", "list", &home.workspace]);
    let accept = format!("accept it: umwelt-ctl trust {}\n", home.workspace);
    assert!(list.text().contains(&accept), "{list:?}");
    assert!(!list.text().contains("write enabled"), "{list:?}");
}

#[test]
fn a_directory_that_is_not_there_is_no_workspace() {
    let home = Home::new();
    let gone = format!("{}/nosuch", home.workspace);
    for args in [
        &["egress", "list", &gone][..],
        &["egress", "add", "https", "a.example.org", &gone],
        &["config", &gone],
        &["plan", &gone],
        &["trust", &gone],
    ] {
        let ran = home.run(args);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert_eq!(ran.text(), "");
        let called = args[..args.len() - 1].join(" ");
        for said in [
            "No such file or directory".to_owned(),
            format!("as in: umwelt-ctl {called} DIR\n"),
        ] {
            assert!(ran.stderr.contains(&said), "{ran:?}");
        }
    }
}

#[test]
fn what_cannot_be_a_workspace_is_refused_by_all_that_tell_of_one() {
    let home = home();
    let of_user = home.path("home");
    for place in ["/", of_user.to_str().unwrap()] {
        for args in [
            &["egress", "list"][..],
            &["egress", "add", "tcp", "a.example.org:22"],
            &["config"],
            &["plan"],
        ] {
            let ran = home.run(&[args, &[place]].concat());
            assert_eq!((ran.code, ran.text()), (Some(2), ""), "{ran:?}");
            assert!(ran.stderr.contains("as workspace: it is the"), "{ran:?}");
        }
    }
}

/// A host whose pip is configured.
fn with_mirror(home: &Home) {
    std::fs::create_dir_all(home.path("home/.pip")).unwrap();
    let mirror = "[global]\nindex-url = https://mirror.example.org/simple\n";
    std::fs::write(home.path("home/.pip/pip.conf"), mirror).unwrap();
    let base =
        "[egress]\nregistries = [\"pip\"]\n\n[[egress.https]]\nhost = \"base.example.org\"\n";
    std::fs::write(home.path("config/umwelt/umwelt.toml"), base).unwrap();
}

#[test]
fn removal_tells_what_went_and_what_still_allows_it() {
    let home = home();
    with_mirror(&home);
    let run = |words: &str| {
        let args: Vec<&str> = words.split(' ').chain([home.workspace.as_str()]).collect();
        home.run(&[&["egress"], &args[..]].concat())
    };
    for words in [
        "add https mirror.example.org --path /a --method PUT",
        "add https mirror.example.org --path /b",
        "add tcp a.example.org:22",
    ] {
        assert_eq!(run(words).code, Some(0), "{words}");
    }
    let ran = run("remove https mirror.example.org --path /a");
    let told = "note: removed: https://mirror.example.org/a with PUT\n\
        note: still allowed by: registry pip, /* by GET, HEAD\nnote: no sandbox";
    assert!(ran.text().contains(told), "{ran:?}");
    let ran = run("remove tcp a.example.org:22");
    assert!(
        ran.text()
            .contains("note: removed: tcp://a.example.org:22\n"),
        "{ran:?}"
    );
    assert!(!ran.text().contains("still allowed"), "{ran:?}");
    // The rest cannot be removed here, and where it can is told.
    let base = home.path("config/umwelt/umwelt.toml");
    for (words, line) in [
        ("remove https base.example.org", "take it out of"),
        (
            "remove https mirror.example.org --path *",
            "take \"pip\" out of registries in",
        ),
    ] {
        let ran = run(words);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        let number = if line.contains("pip") { 2 } else { 4 };
        let hint = format!("hint: {line} {base:?}, line {number}");
        assert!(ran.stderr.contains(&hint), "{hint}: {ran:?}");
    }
}

#[test]
fn a_registry_can_be_named_by_the_shipped_file_or_by_the_workspace() {
    let home = home();
    with_mirror(&home);
    let remove = || {
        let host = "mirror.example.org";
        let ran = home.run(&["egress", "remove", "https", host, &home.workspace]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        ran.stderr
    };
    std::fs::remove_file(home.path("config/umwelt/umwelt.toml")).unwrap();
    let told = remove();
    assert!(
        told.contains("\"pip\" is a registry that umwelt ships"),
        "{told}"
    );
    std::fs::write(
        home.path("config/umwelt/umwelt.toml"),
        "[egress]\nregistries = []\n",
    )
    .unwrap();
    std::fs::write(file(&home), format!("{TEXT}registries = [\"pip\"]\n")).unwrap();
    assert_eq!(home.run(&["trust", "--yes", &home.workspace]).code, Some(0));
    let told = remove();
    let hint = "hint: take \"pip\" out of registries in .umwelt.toml\n";
    assert!(told.ends_with(hint), "{told}");
}

#[test]
fn a_change_is_answered_with_all_rules() {
    let home = home();
    with_mirror(&home);
    let rules = |words: &str| {
        let args: Vec<&str> = words.split(' ').chain([home.workspace.as_str()]).collect();
        let ran = home.run(&[&["egress"], &args[..], &["--json"]].concat());
        let reply: Value = serde_json::from_str(ran.text()).unwrap();
        (reply["changed"].clone(), reply["rules"].clone())
    };
    let (changed, added) = rules("add https a.example.org");
    assert_eq!(changed, json!(true));
    assert!(added.to_string().contains("mirror.example.org"), "{added}");
    assert_eq!(
        rules("add https a.example.org"),
        (json!(false), added.clone())
    );
    assert_eq!(rules("list"), (json!(false), added));
}

#[test]
fn rule_that_the_gateway_refuses_is_told_wherever_rules_are() {
    let home = home();
    let text = format!("{TEXT}\n[[hosts]]\nname = \"git.example.org\"\naddress = \"10.0.0.5\"\n");
    std::fs::write(file(&home), &text).unwrap();
    assert_eq!(home.run(&["trust", "--yes", &home.workspace]).code, Some(0));
    let why = "https://git.example.org/* is refused: git.example.org has the address 10.0.0.5 (private), which takes private = true in the rule";
    let host = "git.example.org";
    let added = home.run(&["egress", "add", "https", host, &home.workspace]);
    assert!(added.text().contains(why), "{added:?}");
    for command in [&["egress", "list"][..], &["plan"]] {
        let ran = home.run(&[command, &[home.workspace.as_str()]].concat());
        assert!(ran.text().contains(why), "{ran:?}");
    }
    let private = ["egress", "add", "https", host, "--private", &home.workspace];
    let added = home.run(&private);
    assert_eq!(added.code, Some(0), "{added:?}");
    assert!(!added.text().contains("is refused"), "{added:?}");
}

#[test]
fn tunnel_beside_an_inspected_rule_is_refused_with_the_way_to_take_that_out() {
    let home = home();
    let host = "a.example.org";
    let add = ["egress", "add", "https", host, &home.workspace];
    assert_eq!(home.run(&add).code, Some(0));
    let before = text(&home);
    let tunnel = [
        "egress",
        "add",
        "https",
        host,
        "--no-inspect",
        &home.workspace,
    ];
    let ran = home.run(&tunnel);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let way = "hint: take it out first: umwelt-ctl egress remove https a.example.org\n";
    assert!(ran.stderr.ends_with(way), "{ran:?}");
    assert!(!ran.stderr.contains("line"), "{ran:?}");
    assert_eq!(text(&home), before);
}

#[test]
fn plan_shows_what_it_can_where_the_host_lacks_something() {
    let home = home();
    let plan = |more: &[&str]| {
        let mut command = home.ctl(&[&["plan", &home.workspace], more].concat());
        let command = command.env("CONTAINER_HOST", "ssh://example.org");
        crate::home::finish(command.spawn().unwrap())
    };
    let ran = plan(&[]);
    assert!(ran.code == Some(1) || ran.code == Some(3), "{ran:?}");
    for shown in [
        format!("workspace  {}\n", home.workspace),
        "base.example.org".to_owned(),
        "The call of podman is left out".to_owned(),
    ] {
        assert!(ran.text().contains(&shown), "{shown}: {ran:?}");
    }
    assert!(ran.stderr.contains("podman is not local"), "{ran:?}");
    // What the network needs is missing too, and told as well.
    assert!(ran.stderr.contains("umwelt-install install"), "{ran:?}");
    let json: Value = serde_json::from_str(plan(&["--json"]).text()).unwrap();
    assert_eq!(json["argv"], json!([]));
    assert!(json["missing"].as_array().unwrap().len() > 1, "{json}");
    assert!(!json["mounts"].as_array().unwrap().is_empty());
}

#[test]
fn file_that_was_not_accepted_is_not_changed() {
    let home = home();
    let edited = format!("{TEXT}# more\n");
    std::fs::write(file(&home), &edited).unwrap();
    for words in [["add", "tcp"], ["remove", "tcp"]] {
        let ran = home.run(
            &[
                &["egress"][..],
                &words,
                &["a.example.org", "22", &home.workspace],
            ]
            .concat(),
        );
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.contains("umwelt-ctl trust"), "{ran:?}");
    }
    assert_eq!(text(&home), edited);
    let list = home.run(&["egress", "list", &home.workspace]);
    assert!(list.text().contains("network  none"), "{list:?}");
    assert!(list.text().contains("note: "), "{list:?}");
}

#[test]
fn running_sandbox_is_asked_and_a_difference_is_a_failure() {
    let home = home();
    let control_plane = home.control_plane_with(|connection, request| {
        if request["method"] != "egress" {
            return false;
        }
        let check = |url: &str, got: &str, ok: bool| {
            json!({"url": url, "expected": "allow", "got": got, "ok": ok, "why": "\u{1b}[2J", "source": "base"})
        };
        let checks = match request["params"]["op"].as_str() {
            Some("verify") => vec![
                check("https://a.example.org/", "allow", true),
                check("tcp://a.example.org:22", "failed", false),
            ],
            _ => Vec::new(),
        };
        let reply = json!({"network": "egress", "changed": checks.is_empty(), "rules": [], "hosts": [],
            "checks": checks, "notices": []});
        connection.result(request["id"].as_u64().unwrap(), reply);
        true
    });
    let asked = || control_plane.requests("egress").pop().unwrap()["params"].take();
    let ran = home.run(&["egress", "verify", &home.workspace]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.text().contains("DIFFERS") && !ran.text().contains('\u{1b}'),
        "{ran:?}"
    );
    assert_eq!(asked(), json!({"op": "verify"}));
    let tunnel = [
        "egress",
        "add",
        "https",
        "a.example.org",
        "--no-inspect",
        &home.workspace,
    ];
    let ran = home.run(&tunnel);
    assert!(ran.text().contains("running sandbox"), "{ran:?}");
    let wanted = json!({"op": "add", "kind": "https", "host": "a.example.org", "inspect": false});
    assert_eq!(asked(), wanted);
    assert_eq!(text(&home), TEXT);
}

#[test]
fn networks_that_were_left_are_shown_and_removed_after_the_containers() {
    let home = home();
    let labels = format!(
        "{{\"umwelt.prefix\":\"umwelt\",\"umwelt.sid\":\"{}\"}}",
        home.sid
    );
    home.networks(&format!(
        "[{{\"name\":\"umwelt-egress-{0}\",\"labels\":{labels}}},{{\"name\":\"other\",\"labels\":{{}}}}]",
        home.sid
    ));
    let status = home.run(&["status", "--json"]);
    let rows: Value = serde_json::from_str(status.text()).unwrap();
    assert_eq!(rows[0]["state"], "dead", "{status:?}");
    assert_eq!(
        rows[0]["networks"],
        json!([format!("umwelt-egress-{}", home.sid)])
    );
    let ran = home.run(&["stop", &home.workspace]);
    assert!(
        ran.code == Some(1) && ran.stderr.contains("stop --hard"),
        "{ran:?}"
    );
    let ran = home.run(&["stop", "--hard", &home.workspace]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.text().contains("removed network umwelt-egress-"),
        "{ran:?}"
    );
    let removed = home.podman_log();
    let removed = removed.lines().filter(|line| line.contains("network rm"));
    assert_eq!(
        removed.collect::<Vec<_>>(),
        [format!("network rm umwelt-egress-{}", home.sid)]
    );
}
