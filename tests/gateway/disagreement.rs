//! CONNECT, SNI, Host, port and form must all name the same place; what is not
//! https is not passed on.

use std::io::{Read, Write};

use crate::client::{Client, config, connect};
use crate::gateway::{Gateway, Setup, https, policy};
use crate::server::Server;

/// Two names and an address are allowed, all at the same server: only the
/// checks of the gateway can tell them apart.
fn start() -> (Gateway, Server) {
    let setup = Setup::new();
    let server = Server::echo(&setup.pki);
    let rules = [
        "a.example.org",
        "b.example.org",
        "*.wild.example.org",
        "127.0.0.1",
    ]
    .map(|host| https(host, server.port, &["*"]));
    let gateway = setup.start(&policy(&rules, &[]));
    (gateway, server)
}

#[test]
fn every_name_of_a_request_must_be_that_of_connect() {
    let (gateway, server) = start();
    let port = server.port;
    let allowed = [
        ("a.example.org", format!("a.example.org:{port}")),
        ("a.example.org", format!("A.Example.ORG:{port}")),
        ("a.example.org", format!("a.example.org.:{port}")),
        ("A.EXAMPLE.org", format!("a.example.org:{port}")),
        ("x.wild.example.org", format!("x.wild.example.org:{port}")),
        ("127.0.0.1", format!("127.0.0.1:{port}")),
    ];
    for (host, field) in allowed {
        let answer = Client::open(&gateway, host, port).get(&field, "/");
        assert_eq!(answer.status, 200, "{host} {field}");
        let sent = format!("Host: {}:{port}\r\n", host.to_ascii_lowercase());
        assert!(server.next_seen().contains(&sent), "{host} {field}");
    }
    let denied = [
        ("a.example.org", format!("b.example.org:{port}")),
        ("a.example.org", "a.example.org".to_owned()),
        ("a.example.org", "a.example.org:443".to_owned()),
        ("a.example.org", format!("127.0.0.1:{port}")),
        (
            "a.example.org",
            format!("a.example.org:{port}, b.example.org"),
        ),
        (
            "a.example.org",
            format!("a.example.org@b.example.org:{port}"),
        ),
        (
            "a.example.org",
            format!("b.example.org:{port}#a.example.org"),
        ),
        ("127.0.0.1", format!("a.example.org:{port}")),
        ("127.0.0.1", format!("[::ffff:127.0.0.1]:{port}")),
        ("127.0.0.1", format!("2130706433:{port}")),
        ("x.wild.example.org", format!("y.wild.example.org:{port}")),
    ];
    for (host, field) in denied {
        let answer = Client::open(&gateway, host, port).get(&field, "/");
        assert!(
            matches!(answer.status, 400 | 403),
            "{host} {field}: {}",
            answer.head
        );
        assert!(answer.head.contains("Connection: close"), "{host} {field}");
        assert_eq!(server.seen.try_recv().ok(), None, "{host} {field}");
    }
}

#[test]
fn a_request_without_one_host_or_in_another_form_is_refused() {
    let (gateway, server) = start();
    let host = format!("a.example.org:{}", server.port);
    for head in [
        "GET / HTTP/1.1\r\n\r\n".to_owned(),
        format!("GET / HTTP/1.1\r\nHost: {host}\r\nHost: {host}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: {host}\r\nhost: b.example.org\r\n\r\n"),
        format!("GET https://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        format!("GET https://b.example.org/ HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        format!("GET //b.example.org@/ /x HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        format!("GET b.example.org/ HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        format!("OPTIONS * HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        format!("CONNECT b.example.org:443 HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        format!("TRACE / HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        format!("get / HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        format!("GET / HTTP/1.0\r\nHost: {host}\r\n\r\n"),
        format!(
            "GET / HTTP/1.1\r\nHost: {host}\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQ\r\n\r\n"
        ),
        format!("GET / HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\n\r\n"),
        format!(
            "POST / HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n"
        ),
        format!(
            "GET / HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket, h2c\r\nConnection: upgrade\r\n\r\n"
        ),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
    ] {
        let answer = Client::open(&gateway, "a.example.org", server.port).ask(&head);
        assert!(
            (400..=499).contains(&answer.status),
            "{head}: {}",
            answer.head
        );
        assert!(answer.json()["reason"].is_string(), "{head}");
        if ["CONNECT", "TRACE", "PRI", "HTTP/1.0", "h2c"]
            .iter()
            .any(|word| head.contains(word))
        {
            assert!(answer.json()["hint"].is_string(), "{head}");
        }
        assert_eq!(server.connections(), 0, "{head}");
    }
}

#[test]
fn the_name_in_the_client_hello_must_be_that_of_connect() {
    let (gateway, server) = start();
    for (host, sni) in [
        ("a.example.org", "b.example.org"),
        ("a.example.org", "127.0.0.1"),
        ("127.0.0.1", "a.example.org"),
        ("x.wild.example.org", "y.wild.example.org"),
    ] {
        let error = Client::open_as(&gateway, host, server.port, sni).err();
        assert!(
            error.is_some_and(|error| error.contains("UnrecognisedName")),
            "{host} {sni}"
        );
        let line =
            gateway.audited(|line| line["why"].as_str().is_some_and(|why| why.contains(host)));
        assert_eq!(line["verdict"], "deny");
    }
    assert_eq!(server.connections(), 0);
}

#[test]
fn a_client_hello_in_small_pieces_is_judged_as_a_whole() {
    let (gateway, server) = start();
    let (stream, _) = connect(&gateway, &format!("a.example.org:{}", server.port));
    let slow = Dribble(stream);
    let name = "a.example.org".try_into().unwrap();
    let mut connection =
        rustls::ClientConnection::new(config(&gateway.pki.gateway, &[]), name).unwrap();
    let mut slow = slow;
    while connection.is_handshaking() {
        connection.complete_io(&mut slow).unwrap();
    }
    let mut tls = rustls::StreamOwned::new(connection, slow);
    let head = format!(
        "GET / HTTP/1.1\r\nHost: a.example.org:{}\r\n\r\n",
        server.port
    );
    tls.write_all(head.as_bytes()).unwrap();
    assert!(
        crate::server::read_head(&mut tls)
            .unwrap()
            .starts_with("HTTP/1.1 200")
    );
}

/// Sends byte by byte.
struct Dribble(std::net::TcpStream);

impl Read for Dribble {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Dribble {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(&bytes[..1])
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_client_that_speaks_only_http2_is_told_so_in_tls() {
    let (gateway, server) = start();
    let (stream, _) = connect(&gateway, &format!("a.example.org:{}", server.port));
    let only_h2 = config(&gateway.pki.gateway, &[b"h2"]);
    let error = Client::over(stream, "a.example.org", only_h2)
        .err()
        .unwrap();
    assert!(error.contains("NoApplicationProtocol"), "{error}");
    gateway.audited(|line| {
        line["why"]
            .as_str()
            .is_some_and(|why| why.contains("HTTP/1.1"))
    });
}

#[test]
fn what_is_not_tls_inside_of_connect_is_refused() {
    let (gateway, server) = start();
    let target = format!("a.example.org:{}", server.port);
    for bytes in [
        "GET / HTTP/1.1\r\nHost: a.example.org\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a.example.org\r\nContent-Length: 2\r\n\r\nab",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "SSH-2.0-x\r\n",
    ] {
        let (mut stream, _) = connect(&gateway, &target);
        stream.write_all(bytes.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(
            text.starts_with("HTTP/1.1 400 ") && text.contains("not TLS"),
            "{bytes}: {text}"
        );
    }
    for bytes in [
        &[0u8, 1, 2, 3][..],
        &[0x16, 0x02, 0, 0][..],
        &[0x80, 0x2e, 1, 3][..],
    ] {
        let (mut stream, _) = connect(&gateway, &target);
        stream.write_all(bytes).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty(), "{bytes:?}: {rest:?}");
    }
    assert_eq!(server.connections(), 0);
}

#[test]
fn the_port_of_connect_is_the_one_that_is_dialled() {
    let setup = Setup::new();
    let first = Server::echo(&setup.pki);
    let second = Server::echo(&setup.pki);
    let rules = [&first, &second].map(|server| https("a.example.org", server.port, &["*"]));
    let gateway = setup.start(&policy(&rules, &[]));
    for server in [&first, &second] {
        let answer = crate::client::get(&gateway, "a.example.org", server.port, "/");
        assert_eq!(answer.status, 200);
        assert!(
            server
                .next_seen()
                .contains(&format!("Host: a.example.org:{}", server.port))
        );
        assert_eq!(server.connections(), 1);
    }
}

#[test]
fn only_connect_is_taken_on_the_proxy_port() {
    let (gateway, server) = start();
    let target = format!("a.example.org:{}", server.port);
    for (head, status, word) in [
        (
            format!("GET http://{target}/ HTTP/1.1\r\nHost: {target}\r\n\r\n"),
            403,
            "plain HTTP",
        ),
        (
            format!("GET https://{target}/ HTTP/1.1\r\nHost: {target}\r\n\r\n"),
            403,
            "https:",
        ),
        (
            format!("GET / HTTP/1.1\r\nHost: {target}\r\n\r\n"),
            400,
            "HTTPS_PROXY",
        ),
        (
            format!(
                "CONNECT {target} HTTP/1.1\r\nHost: b.example.org:{}\r\n\r\n",
                server.port
            ),
            400,
            "disagree",
        ),
        (
            "CONNECT a.example.org HTTP/1.1\r\n\r\n".to_owned(),
            400,
            "port",
        ),
        (
            format!("CONNECT https://{target} HTTP/1.1\r\n\r\n"),
            400,
            "refused",
        ),
        (
            format!("CONNECT user@{target} HTTP/1.1\r\n\r\n"),
            400,
            "refused",
        ),
        (
            format!("CONNECT {target} HTTP/1.1\nHost: {target}\n\n"),
            400,
            "CR LF",
        ),
        ("PRI * HTTP/2.0\r\n\r\n".to_owned(), 400, "HTTP/2"),
        ("\u{16}\u{3}\u{1}\n".to_owned(), 400, "http://"),
    ] {
        let mut stream = gateway.connect();
        stream.write_all(head.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(
            text.starts_with(&format!("HTTP/1.1 {status} ")),
            "{head}: {text}"
        );
        assert!(text.contains(word), "{head}: {text}");
    }
    assert_eq!(server.connections(), 0);
}

#[test]
fn an_old_connect_without_host_field_works() {
    let (gateway, server) = start();
    let mut stream = gateway.connect();
    write!(
        stream,
        "CONNECT a.example.org:{} HTTP/1.0\r\n\r\n",
        server.port
    )
    .unwrap();
    assert!(
        crate::server::read_head(&mut stream)
            .unwrap()
            .starts_with("HTTP/1.1 200 ")
    );
    let mut client =
        Client::over(stream, "a.example.org", config(&gateway.pki.gateway, &[])).unwrap();
    assert_eq!(
        client
            .get(&format!("a.example.org:{}", server.port), "/")
            .status,
        200
    );
}

#[test]
fn an_ipv6_literal_is_a_host_in_brackets() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        eprintln!("left out: there is no IPv6 on the loopback interface");
        return;
    }
    let setup = Setup::new();
    let server = Server::echo_at("::1", rustls::ALL_VERSIONS, &setup.pki);
    let gateway = setup.start(&policy(&[https("::1", server.port, &["*"])], &[]));
    for host in ["[::1]", "[0:0::0:1]"] {
        let field = format!("{host}:{}", server.port);
        let answer = Client::open(&gateway, "[::1]", server.port).get(&field, "/");
        assert_eq!(answer.status, 200, "{field}");
        assert!(
            server
                .next_seen()
                .contains(&format!("Host: [::1]:{}", server.port))
        );
    }
    let (_, head) = connect(&gateway, &format!("::1:{}", server.port));
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    let (_, head) = connect(&gateway, &format!("[::ffff:127.0.0.1]:{}", server.port));
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
}
