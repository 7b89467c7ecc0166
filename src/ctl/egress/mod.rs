//! `umwelt-ctl egress`: what a sandbox may reach, one rule more or less, and
//! whether it is as the configuration expects.

mod offline;
pub(super) mod render;

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, Ipv6Addr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::api::client::Client;
use crate::api::{Call, Egress, EgressOp, EgressReply, RuleKind};
use crate::cli::args::{self, Action, Args, Operands, Subcommand};
use crate::cli::{self, usage};
use crate::config::rule::parse_host;
use crate::ctl::output;
use crate::ctl::peer::{self, Presence};
use crate::ctl::place::Place;
use crate::ctl::{CLIENT, NAME};
use crate::error::{Error, exit_code};
use crate::text::shell_word;

pub(super) const SUBCOMMAND: Subcommand = Subcommand {
    name: "egress",
    help: "\
Usage: umwelt-ctl egress list [--json] [WORKSPACE]
       umwelt-ctl egress add https HOST [--port N] [--path PATTERN]…
                  [--method M]… [--no-inspect] [--private] [--json]
                  [WORKSPACE]
       umwelt-ctl egress add tcp HOST:PORT [--private] [--json] [WORKSPACE]
       umwelt-ctl egress remove https HOST [--port N] [--path PATTERN]…
                  [--json] [WORKSPACE]
       umwelt-ctl egress remove tcp HOST:PORT [--json] [WORKSPACE]
       umwelt-ctl egress verify [--json] [WORKSPACE]

Shows and changes what the sandbox of WORKSPACE may reach on the network. Left
out, WORKSPACE is the current directory. An IPv6 address before a port stands in
brackets. HOST PORT in two words does as well.

list shows the rules with where each comes from, and how a tcp rule is served:
directly, by the relay (SOCKS5), or only until the next start. add and remove
write .umwelt.toml, which must be accepted (umwelt-ctl trust), and change the
running sandbox at once. Without one they change the file alone.

verify tries from inside what the [[egress.expect]] entries say, and prints what
it got. It starts the sandbox where none runs.

Options:
      --port N        the port of an https rule (default 443)
      --path PATTERN  a path that is allowed, with * at its end a prefix; may be
                      given again (default: all). To remove: only the rule with
                      these
      --method M      a method that is allowed; may be given again (default:
                      all)
      --no-inspect    a tunnel that is not looked into
      --private       also where the name leads to a private address
      --json          print one JSON object
  -h, --help          print this help and exit
  -V, --version       print the version and exit

Exit status: 0 done, 1 failed or not as expected, 2 wrong usage.
",
    flags: &["no-inspect", "private", "json"],
    values: &["port", "path", "method"],
    operands: Operands::Actions(ACTIONS),
    run,
};

const ACTIONS: &[Action] = &[
    Action {
        name: "list",
        options: &["json"],
        operands: (0, 1, "one workspace"),
    },
    Action {
        name: "add",
        options: &["port", "path", "method", "no-inspect", "private", "json"],
        operands: (2, 4, RULE),
    },
    Action {
        name: "remove",
        options: &["port", "path", "json"],
        operands: (2, 4, RULE),
    },
    Action {
        name: "verify",
        options: &["json"],
        operands: (0, 1, "one workspace"),
    },
];

const RULE: &str = "https HOST or tcp HOST:PORT, and at most a workspace";
/// Options of rules that the gateway looks into.
const OF_HTTPS: [&str; 4] = ["port", "path", "method", "no-inspect"];

/// A sandbox that is starting answers when it is ready; checks take a minute.
const WAIT: Duration = Duration::from_secs(150);

/// The words after `egress`, understood.
#[derive(Debug, PartialEq)]
struct Asked<'a> {
    call: Egress,
    workspace: Option<&'a OsStr>,
}

fn run(args: Args) -> Result<ExitCode, Error> {
    let asked = parse(&args)?;
    let command = command(&args, &asked);
    answer(&args, asked).map_err(|error| match error {
        Error::Workspace(_) => error.of_command(&command),
        other => other,
    })
}

/// What was called, up to its workspace.
fn command(args: &Args, asked: &Asked<'_>) -> String {
    let count = args.operands.len() - usize::from(asked.workspace.is_some());
    let words = args.operands.iter().take(count);
    let words = words.map(|word| format!(" {}", shell_word(&word.to_string_lossy())));
    format!("{NAME} egress {}{}", args.action, words.collect::<String>())
}

fn answer(args: &Args, asked: Asked<'_>) -> Result<ExitCode, Error> {
    let Asked { call, workspace } = asked;
    let op = call.op;
    let place = Place::load()?;
    let target = place.target(workspace)?;
    let is_running = matches!(
        peer::presence(&target.names.socket)?,
        Presence::Listening(_)
    );
    let deadline = Instant::now() + WAIT;
    let reply: EgressReply = match (is_running, op) {
        (true, _) => {
            let socket = &target.names.socket;
            let (mut client, _) = Client::connect_by(socket, CLIENT, false, deadline)?;
            peer::ask(&mut client, Call::Egress(call), deadline)?
        }
        (false, EgressOp::Verify) => {
            let mut client = place.open(workspace)?;
            peer::ask(&mut client, Call::Egress(call), Instant::now() + WAIT)?
        }
        (false, _) => offline::answer(&place, &target, &call)?,
    };
    let text = match args.has("json") {
        true => output::render_json(&reply)?,
        false => render::reply(&reply, op, is_running, output::wants_colour()),
    };
    let printed = cli::print(&text);
    Ok(match reply.checks.iter().all(|check| check.ok) {
        true => printed,
        false => ExitCode::from(exit_code::FAILURE),
    })
}

fn parse(args: &Args) -> Result<Asked<'_>, Error> {
    let op = match args.action {
        "add" => EgressOp::Add,
        "remove" => EgressOp::Remove,
        "verify" => EgressOp::Verify,
        _ => EgressOp::List,
    };
    let mut call = Egress {
        op,
        kind: None,
        host: None,
        port: None,
        paths: None,
        methods: None,
        inspect: None,
        private: None,
    };
    let mut words = args.operands.iter().map(OsString::as_os_str);
    if matches!(op, EgressOp::Add | EgressOp::Remove) {
        read_rule(&mut call, args, &mut words)?;
    }
    let workspace = words.next();
    match words.next() {
        Some(word) => Err(Error::usage(format!(
            "\"egress {}\" takes {RULE}: {word:?} is one word too many",
            args.action
        ))),
        None => Ok(Asked { call, workspace }),
    }
}

fn read_rule<'a>(
    call: &mut Egress,
    args: &Args,
    words: &mut impl Iterator<Item = &'a OsStr>,
) -> Result<(), Error> {
    let kind = kind_of(&args::text(words.next().unwrap_or_default())?)?;
    let given = args::text(words.next().unwrap_or_default())?;
    let (host, port) = match with_port(&given) {
        Some((host, port)) => (host, Some(port.to_owned())),
        None => (given.as_str(), None),
    };
    let port = match (kind, port, args.text("port")?) {
        (RuleKind::Tcp, None, Some(port)) => {
            return Err(Error::usage(format!(
                "a tcp rule has its port beside the host; write {}",
                joined(host, &port)
            )));
        }
        (RuleKind::Tcp, None, None) => {
            let is_number = |text: &String| text.bytes().all(|byte| byte.is_ascii_digit());
            let word = words.next().map(|word| word.to_string_lossy().into_owned());
            let word = word.filter(is_number);
            Some(word.ok_or_else(|| without_port(host))?)
        }
        (RuleKind::Https, Some(port), Some(other)) => {
            return Err(Error::usage(format!(
                "{host:?} has two ports: {port:?} and {other:?}"
            )));
        }
        (_, port, of_option) => port.or(of_option),
    };
    match kind {
        RuleKind::Tcp => refuse_of_https(args)?,
        RuleKind::Https => refuse_path(host)?,
    }
    call.kind = Some(kind);
    call.host = Some(host.to_owned());
    call.port = port.map(|text| checked_port(&text)).transpose()?;
    call.paths = together("path", &args.texts("path")?)?;
    call.methods = together("method", &args.texts("method")?)?;
    call.inspect = args.has("no-inspect").then_some(false);
    call.private = args.has("private").then_some(true);
    Ok(())
}

fn kind_of(word: &str) -> Result<RuleKind, Error> {
    match word {
        "https" => Ok(RuleKind::Https),
        "tcp" => Ok(RuleKind::Tcp),
        _ => {
            let valid = ["https", "tcp"].map(str::to_owned);
            let command = format!("{NAME} egress");
            Err(usage::unknown("kind of rule", word, &command, &valid))
        }
    }
}

fn refuse_of_https(args: &Args) -> Result<(), Error> {
    let mut given = OF_HTTPS.iter().filter(|option| args.gives(option));
    let name = format!("egress {}", args.action);
    match given.next() {
        Some(option) => Err(Error::usage(format!(
            "the option \"--{option}\" belongs to \"{name} https\", not to \"{name} tcp\""
        ))),
        None => Ok(()),
    }
}

/// In a file a path has a key, here it has an option.
fn refuse_path(word: &str) -> Result<(), Error> {
    // A URL may hold a password, and is refused without being repeated.
    let is_url = word.contains("://") || word.contains('@');
    let Some((host, path)) = word.split_once('/').filter(|_| !is_url) else {
        return Ok(());
    };
    let name = with_port(host).map_or(host, |(name, _)| name);
    let is_range = name.parse::<IpAddr>().is_ok() && path.parse::<u8>().is_ok();
    if is_range || parse_host(name).is_err() {
        return Ok(());
    }
    let host = shell_word(host);
    let right = match path {
        "" => host,
        path => format!("{host} --path {}", shell_word(&format!("/{path}"))),
    };
    Err(Error::usage(format!(
        "{word:?} holds a path; write: {right}"
    )))
}

fn joined(host: &str, port: &str) -> String {
    match host.parse::<Ipv6Addr>() {
        Ok(address) => format!("[{address}]:{port}"),
        Err(_) => format!("{host}:{port}"),
    }
}

/// The end of an IPv6 address can have been meant as the port.
fn without_port(host: &str) -> Error {
    let lacking = format!("{host:?} needs a port: {}", joined(host, "PORT"));
    let meant = host.rsplit_once(':').filter(|(address, port)| {
        let is_address = address.parse::<Ipv6Addr>().is_ok();
        is_address && host.parse::<Ipv6Addr>().is_ok() && checked_port(port).is_ok()
    });
    Error::usage(match meant {
        Some((address, port)) => {
            format!("{lacking}; or, if {port} is the port, write [{address}]:{port}")
        }
        None => lacking,
    })
}

/// `HOST:PORT`, and `[ADDRESS]:PORT` for IPv6.
fn with_port(word: &str) -> Option<(&str, &str)> {
    let (host, port) = match word.strip_prefix('[') {
        Some(rest) => rest.split_once("]:")?,
        None => word.split_once(':')?,
    };
    (!port.contains([':', '/'])).then_some((host, port))
}

fn checked_port(text: &str) -> Result<i64, Error> {
    match text.parse::<u16>() {
        Ok(number @ 1..) => Ok(i64::from(number)),
        _ => Err(Error::usage(format!(
            "{text:?} is not a port: a number from 1 to 65535"
        ))),
    }
}

/// As the socket API has them: with spaces between.
fn together(option: &str, values: &[String]) -> Result<Option<String>, Error> {
    let is_one = |value: &&String| value.is_empty() || value.contains(char::is_whitespace);
    if let Some(value) = values.iter().find(is_one) {
        return Err(Error::usage(format!(
            "the option \"--{option}\" takes one without spaces, and can be given again: {value:?}"
        )));
    }
    Ok((!values.is_empty()).then(|| values.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Asked as Parsed;

    fn args(line: &str) -> Result<Args, Error> {
        let words = line.split(' ').map(OsString::from);
        match SUBCOMMAND.parse("umwelt-ctl egress", words.collect())? {
            Parsed::Run(args) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    fn call(line: &str) -> Result<(Egress, Option<String>), Error> {
        let args = args(line)?;
        let asked = parse(&args)?;
        let workspace = asked.workspace.map(|w| w.to_str().unwrap().to_owned());
        Ok((asked.call, workspace))
    }

    #[test]
    fn words_and_options_become_a_call() {
        let (https, workspace) =
            call("add https a.example.org --port 8443 --path /a --path /b/* --method GET w")
                .unwrap();
        assert_eq!(workspace.as_deref(), Some("w"));
        assert_eq!(
            (https.kind, https.port),
            (Some(RuleKind::Https), Some(8443))
        );
        assert_eq!(https.paths.as_deref(), Some("/a /b/*"));
        assert_eq!(https.methods.as_deref(), Some("GET"));
        assert_eq!((https.inspect, https.private), (None, None));
        let (tunnel, _) = call("add https a.example.org --no-inspect --private").unwrap();
        assert_eq!((tunnel.inspect, tunnel.private), (Some(false), Some(true)));
        let (tcp, workspace) = call("remove tcp a.example.org 22").unwrap();
        assert_eq!((tcp.op, tcp.port), (EgressOp::Remove, Some(22)));
        assert_eq!(workspace, None);
        assert_eq!(call("verify w --json").unwrap().1.as_deref(), Some("w"));
    }

    #[test]
    fn port_stands_with_its_host_or_after_it() {
        for line in [
            "add tcp a.example.org:22 w",
            "add tcp a.example.org 22 w",
            "add tcp [2001:db8::1]:22 w",
            "add tcp 2001:db8::1 22 w",
            "add https a.example.org:22 w",
            "add https a.example.org --port 22 w",
        ] {
            let (egress, workspace) = call(line).unwrap();
            assert_eq!(egress.port, Some(22), "{line}");
            assert_eq!(workspace.as_deref(), Some("w"), "{line}");
            let host = egress.host.unwrap();
            assert!(
                ["a.example.org", "2001:db8::1"].contains(&host.as_str()),
                "{host}"
            );
        }
        // Not a port, so it is for others to refuse it.
        let (url, _) = call("add https https://a.example.org/x").unwrap();
        assert_eq!(url.host.as_deref(), Some("https://a.example.org/x"));
    }

    #[test]
    fn words_in_the_wrong_place_are_told_with_the_right_one() {
        for (line, said) in [
            (
                "add tcp 2001:db8::1:5432",
                "needs a port: [2001:db8::1:5432]:PORT; or, if 5432 is the port, write [2001:db8::1]:5432",
            ),
            ("add tcp 2001:db8::1:5432 w", "write [2001:db8::1]:5432"),
            ("add tcp 2001:db8::1", "needs a port: [2001:db8::1]:PORT"),
            (
                "add tcp a.example.org w",
                "needs a port: a.example.org:PORT",
            ),
            (
                "add tcp db.example.org --port 5434",
                "write db.example.org:5434",
            ),
            ("add tcp 2001:db8::1 --port 22", "write [2001:db8::1]:22"),
            (
                "add https a.example.org/team",
                "\"a.example.org/team\" holds a path; write: a.example.org --path /team",
            ),
            (
                "add https a.example.org:8443/a/*",
                "write: a.example.org:8443 --path '/a/*'",
            ),
            ("add https a.example.org/", "write: a.example.org"),
        ] {
            let Err(Error::Usage(error)) = call(line) else {
                panic!("{line}");
            };
            assert!(error.to_string().ends_with(said), "{line}: {error}");
        }
        // For the rules to refuse.
        for host in [
            "10.0.0.0/8",
            "2001:db8::/32",
            "*",
            "https://a.example.org/x",
            "me:secret@a.example.org/x",
        ] {
            assert!(call(&format!("add https {host}")).is_ok(), "{host}");
        }
    }

    #[test]
    fn what_does_not_fit_is_wrong_usage() {
        for line in [
            "",
            "show",
            "add",
            "add udp a.example.org 1",
            "add https",
            "add tcp a.example.org",
            "add tcp a.example.org 0",
            "add tcp a.example.org:0",
            "add tcp a.example.org:",
            "add tcp a.example.org:22 w x",
            "add https a.example.org:22 --port 22",
            "add tcp a.example.org 65536",
            "add tcp a.example.org 22 w x",
            "add tcp a.example.org 22 --path /x",
            "add https a.example.org --port x",
            "remove https a.example.org --private",
            "remove https a.example.org --method GET",
            "list --path /x",
            "list w x",
            "verify --private",
        ] {
            let wrong = call(line);
            assert!(matches!(wrong, Err(Error::Usage(_))), "{line}: {wrong:?}");
        }
        let error = together("path", &["/a /b".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("without spaces"), "{error}");
    }
}
