//! `umwelt-ctl egress`: what a sandbox may reach, one rule more or less, and
//! whether it is as the configuration expects.

mod offline;
pub(super) mod render;

use std::ffi::OsStr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::api::client::Client;
use crate::api::{Call, Egress, EgressOp, EgressReply, RuleKind};
use crate::cli;
use crate::ctl::args::{self, Args, Operands, Subcommand};
use crate::ctl::output;
use crate::ctl::peer::{self, Presence};
use crate::ctl::place::Place;
use crate::ctl::{CLIENT, NAME};
use crate::error::{Error, exit_code};

pub(super) const SUBCOMMAND: Subcommand = Subcommand {
    name: "egress",
    help: "\
Usage: umwelt-ctl egress list [--json] [WORKSPACE]
       umwelt-ctl egress add https HOST [--port N] [--path PATTERN]…
                  [--method M]… [--no-inspect] [--private] [WORKSPACE]
       umwelt-ctl egress add tcp HOST PORT [--private] [WORKSPACE]
       umwelt-ctl egress remove https HOST [--port N] [--path PATTERN]…
                  [WORKSPACE]
       umwelt-ctl egress remove tcp HOST PORT [WORKSPACE]
       umwelt-ctl egress verify [--json] [WORKSPACE]

Shows and changes what the sandbox of WORKSPACE may reach on the network. Left
out, WORKSPACE is the current directory.

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
    options: &["port", "path", "method", "no-inspect", "private", "json"],
    operands: Operands::Words,
    run,
};

/// A sandbox that is starting answers when it is ready; checks take a minute.
const WAIT: Duration = Duration::from_secs(150);

/// The words after `egress`, understood.
#[derive(Debug, PartialEq)]
struct Asked<'a> {
    call: Egress,
    workspace: Option<&'a OsStr>,
}

fn run(args: Args) -> Result<ExitCode, Error> {
    let Asked { call, workspace } = parse(&args)?;
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
    let text = match args.json {
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
    let mut words = args.words.iter().map(|word| word.as_os_str());
    let op = match words.next().and_then(OsStr::to_str) {
        Some("list") => EgressOp::List,
        Some("add") => EgressOp::Add,
        Some("remove") => EgressOp::Remove,
        Some("verify") => EgressOp::Verify,
        _ => return Err(usage()),
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
    if matches!(op, EgressOp::Add | EgressOp::Remove) {
        call.kind = match words.next().and_then(OsStr::to_str) {
            Some("https") => Some(RuleKind::Https),
            Some("tcp") => Some(RuleKind::Tcp),
            _ => return Err(usage()),
        };
        call.host = Some(args::text(words.next().ok_or_else(usage)?.to_owned())?);
        if call.kind == Some(RuleKind::Tcp) {
            call.port = Some(port(words.next().and_then(OsStr::to_str))?);
        }
    }
    let workspace = words.next();
    if words.next().is_some() {
        return Err(usage());
    }
    options(args, &mut call)?;
    Ok(Asked { call, workspace })
}

/// The options, each where it belongs.
fn options(args: &Args, call: &mut Egress) -> Result<(), Error> {
    let is_https = call.kind == Some(RuleKind::Https);
    let is_added = call.op == EgressOp::Add;
    let is_asked = matches!(call.op, EgressOp::List | EgressOp::Verify);
    let given = [
        ("--port", is_https, args.value("port").is_some()),
        ("--path", is_https, args.value("path").is_some()),
        (
            "--method",
            is_https && is_added,
            args.value("method").is_some(),
        ),
        ("--no-inspect", is_https && is_added, args.has("no-inspect")),
        ("--private", is_added, args.has("private")),
        ("--json", is_asked || call.kind.is_some(), args.json),
    ];
    if let Some((option, ..)) = given.iter().find(|(_, fits, given)| *given && !fits) {
        return Err(Error::Usage(format!(
            "{option} does not belong there; see: {NAME} egress --help"
        )));
    }
    if let Some(text) = args.value("port") {
        call.port = Some(port(Some(text))?);
    }
    call.paths = together("--path", args.values("path"))?;
    call.methods = together("--method", args.values("method"))?;
    call.inspect = args.has("no-inspect").then_some(false);
    call.private = args.has("private").then_some(true);
    Ok(())
}

fn port(text: Option<&str>) -> Result<i64, Error> {
    let number = text.and_then(|text| text.parse::<u16>().ok());
    match number {
        Some(number @ 1..) => Ok(i64::from(number)),
        _ => Err(Error::Usage(
            "a port is a number from 1 to 65535".to_owned(),
        )),
    }
}

/// As the socket API has them: with spaces between.
fn together(option: &str, values: Vec<&str>) -> Result<Option<String>, Error> {
    let is_one = |value: &&&str| value.is_empty() || value.contains(char::is_whitespace);
    if let Some(value) = values.iter().find(is_one) {
        return Err(Error::Usage(format!(
            "{option} takes one without spaces, and can be given again: {value:?}"
        )));
    }
    Ok((!values.is_empty()).then(|| values.join(" ")))
}

fn usage() -> Error {
    Error::Usage(format!(
        "write one of: {NAME} egress list, {NAME} egress add https HOST, {NAME} egress add tcp HOST PORT, {NAME} egress remove https HOST, {NAME} egress remove tcp HOST PORT, {NAME} egress verify; each with WORKSPACE at the end"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctl::args::Asked as Parsed;

    fn args(line: &str) -> Result<Args, Error> {
        let words = line.split(' ').map(std::ffi::OsString::from);
        match SUBCOMMAND.parse(words.collect())? {
            Parsed::Run(args) => Ok(*args),
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
    fn what_does_not_fit_is_wrong_usage() {
        for line in [
            "",
            "show",
            "add",
            "add udp a.example.org 1",
            "add https",
            "add tcp a.example.org",
            "add tcp a.example.org 0",
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
        let spaces = args("add https a.example.org --path x").map(|mut args| {
            args.values = vec![("path", "/a /b".to_owned())];
            parse(&args).is_err()
        });
        assert!(spaces.unwrap());
    }
}
