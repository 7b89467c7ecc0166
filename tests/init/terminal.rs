//! Commands on a terminal of their own.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::io::Errno;
use serde_json::{Value, json};

use crate::peer::{PATIENCE, Peer, Request, readable_within};

struct Terminal {
    id: u64,
    pid: i64,
    master: File,
}

impl Terminal {
    fn start(peer: &mut Peer, script: &str) -> Terminal {
        let cgroup = tempfile::tempfile().unwrap();
        let id = peer.spawn(&Request::terminal(script), &[cgroup.as_fd()]);
        let mut started = peer.receive();
        assert_eq!(started.message["started"]["id"], id);
        assert_eq!(started.fds.len(), 1);
        Terminal {
            id,
            pid: started.message["started"]["pid"].as_i64().unwrap(),
            master: started.fds.remove(0).into(),
        }
    }

    /// Everything shown until the last process has closed the terminal.
    fn read_to_end(&mut self) -> String {
        let mut shown = Vec::new();
        // The end of a terminal is an I/O error.
        let error = self.master.read_to_end(&mut shown).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
        String::from_utf8(shown).unwrap().replace("\r\n", "\n")
    }

    fn read_until(&mut self, wanted: &str) {
        let mut shown = String::new();
        let mut buffer = [0; 256];
        while !shown.contains(wanted) {
            assert!(readable_within(&self.master, PATIENCE), "{shown}");
            let len = self.master.read(&mut buffer).unwrap();
            shown.push_str(&String::from_utf8_lossy(&buffer[..len]));
        }
    }
}

fn exited(peer: &Peer, id: u64) -> Value {
    let message = peer.receive().message;
    assert_eq!(message["exited"]["id"], id);
    message["exited"]["status"].clone()
}

#[test]
fn the_terminal_has_a_name_a_size_and_a_type() {
    let mut peer = Peer::start();
    let mut terminal = Terminal::start(&mut peer, "tty; stty size; echo $TERM; exit 7");
    let shown = terminal.read_to_end();
    let lines: Vec<_> = shown.lines().collect();
    assert!(lines[0].starts_with("/dev/pts/"), "{shown}");
    assert_eq!(lines[1..], ["30 100", "xterm-256color"]);
    assert_eq!(exited(&peer, terminal.id), json!({"code": 7}));
}

#[test]
fn it_is_the_controlling_terminal_of_all_three_streams() {
    let mut peer = Peer::start();
    let script = "test -t 0 && test -t 1 && test -t 2 && echo to-tty >/dev/tty; ls /proc/$$/fd";
    let mut terminal = Terminal::start(&mut peer, script);
    let shown = terminal.read_to_end();
    assert_eq!(
        shown.split_whitespace().collect::<Vec<_>>(),
        ["to-tty", "0", "1", "2"]
    );
}

#[test]
fn an_interrupt_typed_reaches_the_foreground() {
    let mut peer = Peer::start();
    let mut terminal = Terminal::start(&mut peer, "echo ready; exec sleep 60");
    terminal.read_until("ready");
    terminal.master.write_all(b"\x03").unwrap();
    assert_eq!(exited(&peer, terminal.id), json!({"signal": 2}));
}

#[test]
fn a_resize_through_the_master_reaches_the_command() {
    let mut peer = Peer::start();
    let script = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.1; done";
    let mut terminal = Terminal::start(&mut peer, script);
    terminal.read_until("ready");
    let mut size = rustix::termios::tcgetwinsize(&terminal.master).unwrap();
    (size.ws_row, size.ws_col) = (11, 22);
    rustix::termios::tcsetwinsize(&terminal.master, size).unwrap();
    terminal.read_until("11 22");
    assert_eq!(exited(&peer, terminal.id), json!({"code": 0}));
}

#[test]
fn losing_the_master_hangs_the_command_up() {
    let mut peer = Peer::start();
    let mut terminal = Terminal::start(&mut peer, "echo ready; exec sleep 60");
    terminal.read_until("ready");
    // Only if umwelt-init holds no copy of it.
    drop(terminal.master);
    assert_eq!(exited(&peer, terminal.id), json!({"signal": 1}));
}

#[test]
fn a_program_that_does_not_exist_gives_no_terminal() {
    let mut peer = Peer::start();
    let cgroup = tempfile::tempfile().unwrap();
    let request = Request {
        argv: vec!["/does/not/exist".to_owned()],
        ..Request::terminal("")
    };
    let id = peer.spawn(&request, &[cgroup.as_fd()]);
    let answer = peer.receive();
    let errno = Errno::NOENT.raw_os_error();
    let wanted = json!({"failed": {"id": id, "stage": "exec", "errno": errno}});
    assert_eq!(answer.message, wanted);
    assert!(answer.fds.is_empty());
}

#[test]
fn output_of_a_command_that_ended_at_once_is_kept() {
    let mut peer = Peer::start();
    let mut terminal = Terminal::start(&mut peer, "echo short");
    assert_eq!(exited(&peer, terminal.id), json!({"code": 0}));
    let deadline = Instant::now() + PATIENCE;
    while std::path::Path::new(&format!("/proc/{}", terminal.pid)).exists() {
        assert!(Instant::now() < deadline);
    }
    assert_eq!(terminal.read_to_end(), "short\n");
}
