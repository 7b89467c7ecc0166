//! Chromium without a window and without a network: its proxy for everything is
//! a listener of the test's, which writes down what is asked for.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

/// What is asked of it.
#[derive(Clone, Copy)]
pub(crate) struct View {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) dark: bool,
}

pub(crate) const WIDE: View = View {
    width: 1280,
    height: 900,
    dark: false,
};
pub(crate) const NARROW: View = View {
    width: 420,
    height: 900,
    dark: false,
};

/// Where Chromium calls home.
const OWN: [&str; 5] = [
    ".google.com",
    ".googleapis.com",
    ".gstatic.com",
    ".gvt1.com",
    ".gvt2.com",
];

pub(crate) struct Browser {
    program: PathBuf,
    /// Of the proxy.
    port: u16,
    /// First lines of requests.
    asked: Arc<Mutex<Vec<String>>>,
    dir: tempfile::TempDir,
}

impl Browser {
    /// `None` where there is none, which is said.
    pub(crate) fn new() -> Option<Browser> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path)
            .map(|dir| dir.join("chromium"))
            .find(|program| program.is_file());
        let Some(program) = found else {
            let is_required = ["CI", "UMWELT_REQUIRE_CHROMIUM"].map(std::env::var_os);
            let obstacle = "chromium is not on PATH";
            assert!(is_required.iter().all(Option::is_none), "{obstacle}");
            eprintln!("not tested: {obstacle}");
            return None;
        };
        let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = proxy.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let lines = asked.clone();
        // It ends with the test program.
        std::thread::spawn(move || {
            for stream in proxy.incoming() {
                let lines = lines.clone();
                std::thread::spawn(move || note(&stream.unwrap(), &lines));
            }
        });
        Some(Browser {
            program,
            port,
            asked,
            dir: tempfile::tempdir().unwrap(),
        })
    }

    /// The document, as it is after all that may run in it has run.
    pub(crate) fn dom(&self, page: &Path, view: View) -> String {
        let output = self.run(page, view, &["--dump-dom", "--virtual-time-budget=5000"]);
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn picture(&self, page: &Path, view: View) -> Picture {
        let file = self.dir.path().join("page.png");
        self.run(page, view, &[&format!("--screenshot={}", file.display())]);
        let picture = Picture::read(&file);
        assert_eq!((picture.width, picture.height), (view.width, view.height));
        if let Some(kept) = std::env::var_os("UMWELT_KEEP_SCREENSHOTS") {
            let shade = if view.dark { "dark" } else { "light" };
            let name = format!("audit-{}-{shade}.png", view.width);
            std::fs::copy(&file, Path::new(&kept).join(name)).unwrap();
        }
        picture
    }

    /// What pages have asked for. Chromium's own calls home, which no option
    /// turns off for good, are left out.
    pub(crate) fn asked(&self) -> Vec<String> {
        let asked = self.asked.lock().unwrap();
        let is_own = |line: &String| {
            let target = line.split(' ').nth(1).unwrap_or_default();
            let host = target.split("://").last().unwrap_or_default();
            let host = host.split(['/', ':']).next().unwrap_or_default();
            // The longer it lives, on a slow machine, the more of them there are. By names
            // that nobody has it finds out who answers for everything.
            let is_probe = line.starts_with("HEAD ") && !host.contains('.');
            is_probe || OWN.iter().any(|domain| host.ends_with(domain))
        };
        asked.iter().filter(|line| !is_own(line)).cloned().collect()
    }

    fn run(&self, page: &Path, view: View, what: &[&str]) -> Output {
        let user = tempfile::tempdir_in(self.dir.path()).unwrap();
        let mut command = Command::new("timeout");
        // It is killed with its children if it hangs.
        command.args(["--kill-after=5", "300"]).arg(&self.program);
        command.args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--proxy-bypass-list=<-loopback>",
        ]);
        command.arg(format!("--proxy-server=127.0.0.1:{}", self.port));
        command.arg(format!("--user-data-dir={}", user.path().display()));
        command.arg(format!("--window-size={},{}", view.width, view.height));
        if view.dark {
            command.arg("--force-dark-mode");
        }
        command.args(what).arg(page);
        command.env("HOME", user.path());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output
    }
}

/// One request, which is answered with nothing.
fn note(mut stream: &TcpStream, asked: &Mutex<Vec<String>>) {
    let mut line = String::new();
    // A connection that is made ahead and not used asks for nothing.
    if BufReader::new(stream)
        .read_line(&mut line)
        .is_ok_and(|count| count > 0)
    {
        asked.lock().unwrap().push(line);
        let answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        // Whoever has gone away needs no answer.
        let _gone = stream.write_all(answer);
    }
}

pub(crate) type Colour = [u8; 3];

pub(crate) struct Picture {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pixels: Vec<u8>,
}

impl Picture {
    fn read(file: &Path) -> Picture {
        let file = BufReader::new(std::fs::File::open(file).unwrap());
        let mut decoder = png::Decoder::new(file);
        decoder.set_transformations(png::Transformations::STRIP_16 | png::Transformations::EXPAND);
        let mut reader = decoder.read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut bytes).unwrap();
        let samples = info.color_type.samples();
        Picture {
            width: info.width,
            height: info.height,
            pixels: bytes
                .chunks(samples)
                .flat_map(|pixel| [pixel[0], pixel[1], pixel[2]])
                .collect(),
        }
    }

    pub(crate) fn at(&self, x: u32, y: u32) -> Colour {
        let start = (y * self.width + x) as usize * 3;
        [0, 1, 2].map(|part| self.pixels[start + part])
    }

    /// Rows, from the first to the last, in which the colour covers so much of
    /// the width.
    pub(crate) fn row_with(&self, colour: Colour, least: u32) -> Option<u32> {
        (0..self.height).find(|y| {
            let count = (0..self.width)
                .filter(|x| self.at(*x, *y) == colour)
                .count();
            count >= least as usize
        })
    }
}
