//! The client of scripts/bench. One thread, no session resumption, TCP_NODELAY; prints one line of
//! JSON. Whatever fails ends it: a rate with errors in it would be none.
//!
//! usage: umwelt-bench-load PROXY|direct SERVER HOST CA.pem COMMAND
//!
//! latency COUNT PATH           one request after the other on one connection
//! rate CONNECTIONS SECONDS keep|new PATH
//! down CONNECTIONS PATH        one response on each of them
//! up CONNECTIONS BYTES PATH    one PUT on each of them
//! hold COUNT raw|tls|used PATH  opens them (and uses each once), waits for the end of stdin,
//!                              counts who still lives

mod connection;

use std::error::Error;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use connection::{Connection, Route};
use mio::{Events, Poll, Token};
use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};

/// Before what is measured.
const WARM_UP: Duration = Duration::from_millis(200);
/// Connections that are opened at once where many are held.
const OPENING: usize = 64;
const PATIENCE: Duration = Duration::from_secs(60);

struct Client {
    route: Route,
    poll: Poll,
    events: Events,
    connections: Vec<Connection>,
    room: Vec<u8>,
}

impl Client {
    fn new(route: Route) -> io::Result<Client> {
        Ok(Client {
            route,
            poll: Poll::new()?,
            events: Events::with_capacity(256),
            connections: Vec::new(),
            room: vec![0; 256 << 10],
        })
    }

    fn open(&mut self) -> io::Result<()> {
        let token = Token(self.connections.len());
        let connection = Connection::open(&self.route, self.poll.registry(), token)?;
        self.connections.push(connection);
        Ok(())
    }

    fn reopen(&mut self, index: usize) -> io::Result<()> {
        let registry = self.poll.registry();
        self.connections[index] = Connection::open(&self.route, registry, Token(index))?;
        Ok(())
    }

    /// Waits for events; the numbers of those that have become idle.
    fn turn(&mut self, idle: &mut Vec<usize>) -> io::Result<()> {
        self.poll.poll(&mut self.events, Some(PATIENCE))?;
        if self.events.is_empty() {
            return Err(io::Error::other("nothing happens any more"));
        }
        for event in &self.events {
            let index = event.token().0;
            let connection = &mut self.connections[index];
            let was_idle = connection.is_idle();
            if !was_idle {
                connection.drive(&self.route, &mut self.room)?;
            }
            if !was_idle && connection.is_idle() {
                idle.push(index);
            }
        }
        Ok(())
    }

    fn ask(&mut self, index: usize, head: &[u8], upload: u64) -> io::Result<()> {
        self.connections[index].ask(head, upload)
    }

    /// Opens `count` and waits for all.
    fn open_all(&mut self, count: usize) -> io::Result<()> {
        let (mut ready, mut idle) = (0, Vec::new());
        while ready < count {
            while self.connections.len() < count && self.connections.len() - ready < OPENING {
                self.open()?;
            }
            self.turn(&mut idle)?;
            ready += idle.len();
            idle.clear();
        }
        Ok(())
    }

    /// Sends a request on each connection and waits for all responses.
    fn ask_all(&mut self, head: &[u8], upload: u64) -> io::Result<()> {
        let (mut ready, mut idle) = (0, Vec::new());
        for index in 0..self.connections.len() {
            self.ask(index, head, upload)?;
        }
        while ready < self.connections.len() {
            self.turn(&mut idle)?;
            ready += idle.len();
            idle.clear();
        }
        Ok(())
    }

    fn get(&self, path: &str) -> Vec<u8> {
        let (host, port) = (&self.route.host, self.route.server.port());
        format!("GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n").into_bytes()
    }

    fn put(&self, path: &str, length: u64) -> Vec<u8> {
        let (host, port) = (&self.route.host, self.route.server.port());
        let head = format!("PUT {path} HTTP/1.1\r\nHost: {host}:{port}\r\n");
        format!("{head}Content-Length: {length}\r\n\r\n").into_bytes()
    }
}

fn latency(client: &mut Client, count: usize, path: &str) -> io::Result<Value> {
    let request = client.get(path);
    client.open_all(1)?;
    let (mut idle, mut times) = (Vec::new(), Vec::new());
    for number in 0..count + count / 5 {
        let start = Instant::now();
        client.ask(0, &request, 0)?;
        while idle.is_empty() {
            client.turn(&mut idle)?;
        }
        idle.clear();
        // The first ones warm it up.
        if number >= count / 5 {
            times.push(start.elapsed());
        }
    }
    times.sort();
    let at = |share: usize| times[times.len() * share / 100].as_secs_f64();
    Ok(json!({"p50": at(50), "p95": at(95), "total": count + count / 5}))
}

fn rate(
    client: &mut Client,
    count: usize,
    seconds: f64,
    keep: bool,
    path: &str,
) -> io::Result<Value> {
    let request = client.get(path);
    let mut idle = Vec::new();
    for _ in 0..count {
        client.open()?;
    }
    // Whether what it becomes idle after is a response, and not its opening.
    let mut asked = vec![false; count];
    let (mut total, mut before) = (0, 0);
    let start = Instant::now();
    let mut measured = None;
    loop {
        client.turn(&mut idle)?;
        for index in idle.drain(..) {
            let is_answered = std::mem::replace(&mut asked[index], true);
            total += u64::from(is_answered);
            if is_answered && !keep {
                asked[index] = false;
                client.reopen(index)?;
            } else {
                client.ask(index, &request, 0)?;
            }
        }
        match measured {
            None if start.elapsed() >= WARM_UP => {
                (measured, before) = (Some(Instant::now()), total)
            }
            Some(from) if from.elapsed().as_secs_f64() >= seconds => {
                let rate = (total - before) as f64 / from.elapsed().as_secs_f64();
                return Ok(json!({"rate": rate, "total": total}));
            }
            _ => {}
        }
    }
}

fn bulk(client: &mut Client, count: usize, upload: Option<u64>, path: &str) -> io::Result<Value> {
    client.open_all(count)?;
    let request = match upload {
        Some(length) => client.put(path, length),
        None => client.get(path),
    };
    let start = Instant::now();
    client.ask_all(&request, upload.unwrap_or(0))?;
    Ok(json!({"seconds": start.elapsed().as_secs_f64()}))
}

fn hold(client: &mut Client, count: usize, is_used: bool, path: &str) -> io::Result<Value> {
    let request = client.get(path);
    let mut idle = Vec::new();
    client.open_all(count)?;
    for index in 0..if is_used { count } else { 0 } {
        client.ask(index, &request, 0)?;
        while idle.is_empty() {
            client.turn(&mut idle)?;
        }
        idle.clear();
    }
    tell(&json!({"open": count}))?;
    io::stdin().read_to_end(&mut Vec::new())?;
    let alive = client
        .connections
        .iter()
        .filter(|connection| connection.is_open());
    Ok(json!({"alive": alive.count()}))
}

fn tell(value: &Value) -> io::Result<()> {
    let mut stdout = io::stdout();
    writeln!(stdout, "{value}")?;
    stdout.flush()
}

fn tls_config(roots: &str) -> Result<ClientConfig, Box<dyn Error>> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(roots)? {
        store.add(certificate?)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(store)
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [proxy, server, host, roots, command @ ..] = &words[..] else {
        return Err("usage: PROXY|direct SERVER HOST CA.pem COMMAND".into());
    };
    let route = Route {
        proxy: match *proxy {
            "direct" => None,
            address => Some(address.parse()?),
        },
        server: server.parse()?,
        host: (*host).to_owned(),
        tls: Arc::new(tls_config(roots)?),
        is_raw: command.get(2) == Some(&"raw"),
    };
    let mut client = Client::new(route)?;
    let client = &mut client;
    let result = match command {
        ["latency", count, path] => latency(client, count.parse()?, path),
        ["rate", count, seconds, kind @ ("keep" | "new"), path] => rate(
            client,
            count.parse()?,
            seconds.parse()?,
            *kind == "keep",
            path,
        ),
        ["down", count, path] => bulk(client, count.parse()?, None, path),
        ["up", count, bytes, path] => bulk(client, count.parse()?, Some(bytes.parse()?), path),
        ["hold", count, kind @ ("raw" | "tls" | "used"), path] => {
            hold(client, count.parse()?, *kind == "used", path)
        }
        _ => return Err(format!("no such command: {command:?}").into()),
    };
    Ok(tell(&result?)?)
}
