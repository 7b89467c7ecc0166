//! umwelt-mcp: the MCP server on stdio, for one workspace.
//!
//! Bytes of stdin -> jsonrpc -> session -> tools -> the socket API, and back.
//! stdout is protocol only. The sandbox itself is the control plane's affair.

mod egress_tool;
pub(crate) mod jsonrpc;
mod progress;
mod queue;
mod render;
mod server;
mod session;
mod start;
pub(crate) mod tools;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::api::ApiError;
use crate::cli::{self, usage};
use crate::error::Error;
use crate::mcp::session::Session;
use crate::mcp::start::Place;
use crate::text::printable;

const NAME: &str = "umwelt-mcp";

const HELP: &str = "\
Usage: umwelt-mcp [--workspace DIR]

Gives an agent a shell in a sandbox, over MCP. An MCP client starts it and talks
to it on stdin and stdout. It attaches to the sandbox of the workspace, or
starts it, and ends when stdin ends.

Options:
      --workspace DIR  the project directory (default: the current directory)
  -h, --help           print this help and exit
  -V, --version        print the version and exit

Environment:
  UMWELT_LOG  level of the log on stderr (default: warn)

Exit status: 0 stdin has ended, 1 it could not be used, 2 wrong usage.
";

pub(crate) fn main(args: Vec<OsString>) -> Result<ExitCode, Error> {
    let asked = match parse(args)? {
        Options::Help => return Ok(cli::print(HELP)),
        Options::Version => return Ok(cli::version(NAME)),
        Options::Serve { workspace } => workspace,
    };
    cli::start_log(NAME);
    // A refusal does not end the program: a client would show a dead server as
    // no tools and no reason. Each call is answered with it instead.
    let place = Place::find(asked.as_deref());
    if let Err(error) = &place {
        log::warn!("{error}");
    }
    server::serve(Session::new(instructions(&place)), asked)?;
    Ok(ExitCode::SUCCESS)
}

#[derive(Debug, PartialEq)]
enum Options {
    Help,
    Version,
    Serve { workspace: Option<PathBuf> },
}

fn parse(args: Vec<OsString>) -> Result<Options, Error> {
    let mut workspace = None;
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            lexopt::Arg::Long("help") | lexopt::Arg::Short('h') => return Ok(Options::Help),
            lexopt::Arg::Long("version") | lexopt::Arg::Short('V') => return Ok(Options::Version),
            lexopt::Arg::Long("workspace") => workspace = Some(parser.value()?.into()),
            other => return Err(usage::unexpected(&other, NAME, HELP)),
        }
    }
    Ok(Options::Serve { workspace })
}

/// What the client puts into the model's system prompt; so it is short.
fn instructions(place: &Result<Place, ApiError>) -> String {
    let place = match place {
        Ok(place) => place,
        Err(error) => {
            return format!(
                "umwelt cannot give you a sandbox now: {}. Tell the user; every tool call says how to repair it.",
                printable(&error.message)
            );
        }
    };
    let workspace = printable(place.workspace.alias().unwrap_or(place.workspace.as_str()));
    let mut text = format!(
        "umwelt runs your commands in a sandbox for the project {workspace}. The shell tool starts in \
         that directory; its files are the real ones, and writable. $HOME and the temporary \
         directories are writable scratch that starts empty. All else is read-only or not there, \
         and there is no network unless the project has turned it on: then the egress tool shows \
         which hosts can be reached, and asks the user for more. A refusal (\"Permission denied\", \"Read-only file system\", an \
         unreachable host) is the sandbox's limit, not an obstacle to get around: the list tool \
         shows what there is, and the grant tool asks the user for more of the host."
    );
    if let Some(notice) = &place.notice {
        text.push_str(&format!(" Note: {}.", printable(notice)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(args: &[&str]) -> Result<Options, Error> {
        parse(args.iter().map(OsString::from).collect())
    }

    #[test]
    fn workspace_is_taken_and_anything_unknown_is_refused() {
        let workspace = Some(PathBuf::from("/p"));
        assert_eq!(
            options(&["--workspace", "/p"]).unwrap(),
            Options::Serve { workspace }
        );
        assert_eq!(options(&["--help"]).unwrap(), Options::Help);
        for args in [&["--x"][..], &["x"], &["--workspace"]] {
            assert!(matches!(options(args), Err(Error::Usage(_))), "{args:?}");
        }
    }

    #[test]
    fn refused_workspace_is_told_in_the_instructions() {
        let error = ApiError::new(crate::api::ErrorKind::BadConfig, "no\nplace");
        assert!(instructions(&Err(error)).contains("sandbox now: no\\nplace. Tell the user"));
    }
}
