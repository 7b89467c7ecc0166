//! Control planes that clients launch: who gets there first, who keeps them.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::podman_common::sandbox::Place;
use crate::podman_common::{Client, Options, PATIENCE, host, wait_for};
use crate::run::send;
use crate::traces::{assert_gone, assert_no_orphan, containers};

fn place() -> Option<Place> {
    host::qualifies().then(|| Place::new(Options::default()))
}

/// `umwelt-run --detach` under way.
struct Launcher(Child);

impl Launcher {
    fn begin(place: &Place) -> Launcher {
        let mut command = place.command();
        command
            .arg("--detach")
            .arg("--workspace")
            .arg(&place.workspace)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        Launcher(command.spawn().expect("umwelt-run"))
    }

    /// The line that it reports; its stdout must end with it.
    fn report(mut self) -> Value {
        let output = self.0.stdout.take().expect("stdout");
        let text = std::io::read_to_string(output).expect("UTF-8");
        let status = self.0.wait().expect("wait");
        assert_eq!(status.code(), Some(0), "{text}");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}"))
    }
}

/// Ends what was launched, should the test fail.
struct Launched<'a> {
    place: &'a Place,
    pid: u32,
}

impl<'a> Launched<'a> {
    fn of(place: &'a Place, client: &mut Client) -> Launched<'a> {
        let status = client.call("status", json!({})).unwrap();
        assert_eq!(status["launched"], true, "{status}");
        let pid = u32::try_from(status["pid"].as_u64().unwrap()).unwrap();
        Launched { place, pid }
    }

    fn is_alive(&self) -> bool {
        host::is_alive(self.pid)
    }

    fn assert_ends(&self) {
        wait_for("the launched control plane to end", PATIENCE, || {
            (!self.is_alive()).then_some(())
        });
        assert_gone(self.place);
    }
}

impl Drop for Launched<'_> {
    fn drop(&mut self) {
        if self.is_alive() {
            send(self.pid, Signal::TERM);
        }
    }
}

#[test]
fn fifty_simultaneous_launches_make_one_sandbox_that_serves_all() {
    let Some(place) = place() else { return };
    let launchers: Vec<Launcher> = (0..50).map(|_| Launcher::begin(&place)).collect();
    // It ends where nobody holds it within a minute, and all these starts take a while.
    let keeper = wait_for("the socket", PATIENCE, || {
        Client::try_raw(&place.socket()).ok()
    });
    let keeper = keeper.hold();
    let mut reports: Vec<Value> = launchers.into_iter().map(Launcher::report).collect();
    reports.sort_by_key(|report| report.get("listening").is_none());
    assert_eq!(reports.len(), 50);
    assert_eq!(reports[0], json!({"listening": true}));
    for report in &reports[1..] {
        assert_eq!(report, &json!({"attached": true}));
    }
    let mut clients: Vec<Client> = (0..50)
        .map(|_| Client::connect_holding(&place.socket()))
        .collect();
    let launched = Launched::of(&place, &mut clients[0]);
    let requests: Vec<u64> = clients
        .iter_mut()
        .enumerate()
        .map(|(number, client)| client.start(&format!("echo client {number}")))
        .collect();
    for (number, (client, request)) in clients.iter_mut().zip(requests).enumerate() {
        let result = client.answer(request).unwrap();
        assert_eq!(result["output"], format!("client {number}\n"), "{result}");
    }
    assert_eq!(containers(&place).len(), 1);
    // Those that came too late have said so, and podman its part, before they end.
    let workspace = place.workspace.to_str().unwrap();
    wait_for("the one to be alone", PATIENCE, || {
        (host::processes_with(workspace) == [launched.pid]).then_some(())
    });
    drop((clients, keeper));
    launched.assert_ends();
}

#[test]
fn launched_one_stays_while_somebody_holds_it_and_ends_with_the_last() {
    let Some(place) = place() else { return };
    assert_eq!(Launcher::begin(&place).report(), json!({"listening": true}));
    // Somebody who only asks does not hold it, and does not end it either.
    let mut asking = Client::connect(&place.socket());
    let launched = Launched::of(&place, &mut asking);
    drop(asking);
    let mut first = Client::connect_holding(&place.socket());
    let mut second = Client::connect_holding(&place.socket());
    assert_eq!(first.output("echo first"), "first\n");
    drop(first);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(second.output("echo second"), "second\n");
    let mut asking = Client::connect(&place.socket());
    asking.call("ping", json!({})).unwrap();
    drop(second);
    launched.assert_ends();
    assert!(asking.receive().is_none(), "it is closed");
}

#[test]
fn launched_one_is_in_a_session_of_its_own_and_nobodys_child() {
    let Some(place) = place() else { return };
    let launcher = Launcher::begin(&place);
    let parent = launcher.0.id();
    launcher.report();
    let mut client = Client::connect_holding(&place.socket());
    let launched = Launched::of(&place, &mut client);
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", launched.pid)).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let fields: Vec<u32> = fields
        .split_whitespace()
        .skip(1)
        .take(3)
        .map(|field| field.parse().unwrap())
        .collect();
    let [ppid, group, session] = fields[..] else {
        panic!("{stat}");
    };
    assert!(![parent, std::process::id()].contains(&ppid), "{stat}");
    assert_eq!((group, session), (launched.pid, launched.pid), "{stat}");
    // Nothing of the launcher's is kept open.
    let stdout = std::fs::read_link(format!("/proc/{}/fd/1", launched.pid)).unwrap();
    assert_eq!(stdout, std::path::Path::new("/dev/null"));
    client.call("list", json!({})).unwrap();
    drop(client);
    launched.assert_ends();
}

/// umwelt-mcp as an agent's client runs it.
struct Mcp {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    last_id: u64,
}

impl Mcp {
    fn start(place: &Place) -> Mcp {
        let mut command = place.applet("umwelt-mcp");
        command
            .arg("--workspace")
            .arg(&place.workspace)
            .env("MODEL_API_KEY", "canary-91c2")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().expect("umwelt-mcp");
        let stdout = child.stdout.take().expect("stdout");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                drop(sender.send(line));
            }
        });
        let mut mcp = Mcp {
            stdin: child.stdin.take(),
            child,
            lines,
            last_id: 0,
        };
        let client = json!({"name": "test", "version": "1"});
        let params =
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
        mcp.call("initialize", params);
        mcp.write(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        mcp
    }

    fn write(&mut self, message: &Value) {
        let stdin = self.stdin.as_mut().expect("open");
        writeln!(stdin, "{message}").expect("write");
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.last_id += 1;
        let id = self.last_id;
        self.write(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        loop {
            let line = self.lines.recv_timeout(PATIENCE).expect("an answer");
            let mut message: Value = serde_json::from_str(&line).expect("JSON");
            if message["id"] == id {
                return message["result"].take();
            }
        }
    }

    /// The text of a shell call's result.
    fn shell(&mut self, command: &str) -> String {
        let params = json!({"name": "shell", "arguments": {"command": command}});
        let result = self.call("tools/call", params);
        let text = result["content"][0]["text"].as_str().map(str::to_owned);
        text.unwrap_or_else(|| panic!("{result}"))
    }
}

impl Drop for Mcp {
    fn drop(&mut self) {
        send(self.child.id(), Signal::KILL);
        drop(self.child.wait());
    }
}

#[test]
fn killed_mcp_server_takes_its_sandbox_along_unless_another_one_is_there() {
    let Some(place) = place() else { return };
    let mut first = Mcp::start(&place);
    assert!(first.shell("echo hello-$((40+2))").contains("hello-42"));
    let mut second = Mcp::start(&place);
    assert!(second.shell("echo there-$((40+2))").contains("there-42"));
    let mut asking = Client::connect(&place.socket());
    let launched = Launched::of(&place, &mut asking);
    drop(asking);
    let environment = std::fs::read(format!("/proc/{}/environ", launched.pid)).unwrap();
    let environment = String::from_utf8_lossy(&environment);
    assert!(environment.contains("XDG_RUNTIME_DIR="), "{environment}");
    assert!(!environment.contains("canary"), "{environment}");

    drop(first);
    std::thread::sleep(Duration::from_secs(1));
    assert!(second.shell("echo still-$((40+2))").contains("still-42"));
    drop(second);
    launched.assert_ends();
    assert_no_orphan(&place);
}

#[test]
fn mcp_server_gets_over_a_killed_control_plane() {
    let Some(place) = place() else { return };
    let mut mcp = Mcp::start(&place);
    assert!(mcp.shell("echo a-$((40+2))").contains("a-42"));
    let mut asking = Client::connect(&place.socket());
    let first = Launched::of(&place, &mut asking);
    send(first.pid, Signal::KILL);
    assert!(asking.receive().is_none());
    // The call that meets the death may fail; the next one must not.
    let answer = mcp.shell("echo b-$((40+2))");
    if !answer.contains("b-42") {
        assert!(mcp.shell("echo c-$((40+2))").contains("c-42"), "{answer}");
    }
    let mut asking = Client::connect(&place.socket());
    let second = Launched::of(&place, &mut asking);
    drop(asking);
    assert_ne!(first.pid, second.pid);
    mcp.stdin = None;
    let status = wait_for("umwelt-mcp to end", PATIENCE, || {
        mcp.child.try_wait().unwrap()
    });
    assert_eq!((status.code(), status.signal()), (Some(0), None));
    second.assert_ends();
}

#[test]
fn launch_after_a_kill_works() {
    let Some(place) = place() else { return };
    // Killed while it starts, and when it is ready.
    for is_ready in [false, true] {
        assert_eq!(Launcher::begin(&place).report(), json!({"listening": true}));
        let mut client = Client::connect_holding(&place.socket());
        let launched = Launched::of(&place, &mut client);
        if is_ready {
            client.call("list", json!({})).unwrap();
        }
        send(launched.pid, Signal::KILL);
        wait_for("the end", PATIENCE, || (!launched.is_alive()).then_some(()));
    }
    assert_eq!(Launcher::begin(&place).report(), json!({"listening": true}));
    let mut client = Client::connect_holding(&place.socket());
    assert_eq!(client.output("echo again"), "again\n");
    let launched = Launched::of(&place, &mut client);
    drop(client);
    launched.assert_ends();
}
