//! What umwelt-init accepts at its start, and how it ends.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output};

use crate::peer::{BINARY, PATIENCE, Peer, Request, init_command, readable_within, seqpacket_pair};

fn output_with(socket: impl Into<OwnedFd>) -> Output {
    init_command("", socket.into()).output().unwrap()
}

fn assert_refused(output: &Output, because: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.starts_with("umwelt-init: cannot serve the control plane on descriptor 3: "),
        "{stderr}"
    );
    assert!(stderr.contains(because), "{stderr}");
}

#[test]
fn anything_but_a_packet_socket_on_descriptor_3_is_refused() {
    let (stream, _other) = UnixStream::pair().unwrap();
    assert_refused(
        &output_with(stream),
        "not a Unix socket of type SOCK_SEQPACKET",
    );
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_refused(
        &output_with(tcp),
        "not a Unix socket of type SOCK_SEQPACKET",
    );
    let null = std::fs::File::open("/dev/null").unwrap();
    assert_refused(&output_with(null), "non-socket");
}

#[test]
fn a_closed_descriptor_3_is_refused() {
    let script = "exec \"$0\" umwelt-init 3<&-";
    let output = Command::new("/bin/sh")
        .args(["-c", script, BINARY])
        .output()
        .unwrap();
    assert_refused(&output, "Bad file descriptor");
}

#[test]
fn help_and_version_need_no_socket() {
    for (argument, wanted) in [
        ("--help", "Usage: umwelt-init"),
        ("-h", "Usage: umwelt-init"),
        (
            "--version",
            concat!("umwelt-init ", env!("CARGO_PKG_VERSION")),
        ),
        ("-V", concat!("umwelt-init ", env!("CARGO_PKG_VERSION"))),
    ] {
        let output = Command::new(BINARY)
            .args(["init", argument])
            .output()
            .unwrap();
        assert!(output.status.success());
        assert!(String::from_utf8_lossy(&output.stdout).starts_with(wanted));
        assert!(output.stderr.is_empty());
    }
}

#[test]
fn other_arguments_are_wrong_usage() {
    for argument in ["--fd=4", "run"] {
        let output = Command::new(BINARY)
            .args(["init", argument])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2));
    }
}

#[test]
fn the_standard_streams_of_its_start_are_let_go() {
    let (ours, theirs) = seqpacket_pair();
    let mut command = init_command("", theirs);
    command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut peer = Peer::start_command(command, ours);
    let output = peer.child.stdout.take().unwrap();
    let errors = peer.child.stderr.take().unwrap();
    // Nobody has the other ends any more.
    for stream in [OwnedFd::from(output), OwnedFd::from(errors)] {
        assert!(readable_within(&stream, PATIENCE));
        assert_eq!(rustix::io::read(&stream, &mut [0; 1]), Ok(0));
    }
    peer.assert_serves();
}

#[test]
fn it_ends_with_the_control_plane() {
    let mut peer = Peer::start();
    assert!(peer.hang_up().success());
}

#[test]
fn it_ends_with_the_control_plane_while_commands_run() {
    let mut peer = Peer::start();
    let running = peer.spawn_piped(&Request::shell("read line"));
    assert_eq!(peer.receive().message["started"]["id"], running.id);
    // Reports that nobody has read make this a reset and not an end of file.
    peer.send(br#"{"spawn":{"id":1}}"#, &[]).unwrap();
    peer.hang_up();
}
