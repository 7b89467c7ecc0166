//! umwelt-ctl on terminals made for it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

use rustix::termios::LocalModes;

use crate::control_plane::open_pty;
use crate::home::{Home, Ran, eventually, finish};

/// umwelt-ctl on a terminal that the test holds the other side of.
pub(crate) struct Session {
    pub(crate) master: File,
    pub(crate) terminal: OwnedFd,
    shown: Arc<Mutex<Vec<u8>>>,
    pub(crate) child: Child,
}

impl Session {
    pub(crate) fn start(home: &Home, args: &[&str]) -> Session {
        Session::start_as(home, args, "xterm-256color")
    }

    pub(crate) fn start_as(home: &Home, args: &[&str], term: &str) -> Session {
        Session::start_with(home, args, term, "")
    }

    /// `typed` waits in the terminal when the program begins.
    pub(crate) fn start_with(home: &Home, args: &[&str], term: &str, typed: &str) -> Session {
        let (master, terminal) = open_pty(24, 80);
        rustix::io::write(&master, typed.as_bytes()).unwrap();
        let child = home
            .ctl_on_terminal(args)
            .env("TERM", term)
            .stdin(terminal.try_clone().unwrap())
            .stdout(terminal.try_clone().unwrap())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let master = File::from(master);
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut from, into) = (master.try_clone().unwrap(), Arc::clone(&shown));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = from.read(&mut bytes) {
                into.lock().unwrap().extend(&bytes[..len]);
            }
        });
        Session {
            master,
            terminal,
            shown,
            child,
        }
    }

    pub(crate) fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    pub(crate) fn type_keys(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn wait_for(&self, text: &str) {
        eventually(&format!("{text:?} is shown"), || {
            self.shown().contains(text)
        });
    }

    pub(crate) fn is_raw(&self) -> bool {
        let modes = rustix::termios::tcgetattr(&self.terminal)
            .unwrap()
            .local_modes;
        !modes.intersects(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG)
    }

    /// The end; the terminal must be as it was.
    pub(crate) fn finish(self) -> Ran {
        let ran = finish(self.child);
        let modes = rustix::termios::tcgetattr(&self.terminal).unwrap();
        let usual = LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
        assert!(
            modes.local_modes.contains(usual),
            "the terminal is still raw"
        );
        ran
    }
}
