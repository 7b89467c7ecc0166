//! umwelt-nft-hook: puts a rendered ruleset into the network namespace of a
//! container that is being created, or reads it back from one that runs.
//!
//! Whatever is not as expected is a failure: the runtime then gives the
//! container up, and umwelt-run removes it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use lexopt::ValueExt;
use rustix::fs::{Mode, OFlags};
use rustix::thread::{CapabilitySet, LinkNameSpaceType};
use serde::Deserialize;

use super::readback::ReadBack;
use super::table::{Counts, Table};
use super::{NftError, program};
use crate::cli::{self, usage};
use crate::digest::sha256;
use crate::error::Error;
use crate::sys::{namespace, spawn};

const NAME: &str = "umwelt-nft-hook";
const HELP: &str = "\
Usage: umwelt-nft-hook --ruleset FILE --digest SHA256 --nft PATH
       umwelt-nft-hook --read-back --ruleset FILE --digest SHA256 --nft PATH

Puts the network rules of a sandbox in place, as an OCI createContainer hook,
or reads them back. Started by the OCI runtime and by umwelt-run; of no use
from a shell.

Options:
      --ruleset FILE   commands for nft, as JSON
      --digest SHA256  what the file's content must be, as 64 hexadecimal digits
      --nft PATH       the nft program, by its absolute path
      --read-back      compare the rules of the process whose pidfd is
                       descriptor 3, and print what they have counted
  -h, --help           print this help and exit
  -V, --version        print the version and exit
";

/// Where the pidfd of a process in the sandbox is passed for `--read-back`.
const PIDFD: i32 = 3;
/// Most bytes of a ruleset, and of the runtime's words about the container.
const LIMIT: u64 = 1 << 20;

pub(crate) fn main(args: Vec<OsString>) -> Result<ExitCode, Error> {
    match parse(args)? {
        Action::Print(code) => Ok(code),
        Action::Install(order) => {
            install(&order)?;
            Ok(ExitCode::SUCCESS)
        }
        Action::ReadBack(order) => {
            // Before anything else is opened.
            let pidfd = spawn::take_inherited(PIDFD)
                .map_err(|error| Error::io("take the pidfd on descriptor 3", error))?;
            let found = read_back(&order, &pidfd)?;
            let line = serde_json::to_string(&found)
                .map_err(|error| NftError::Listing(error.to_string()))?;
            Ok(cli::print(&format!("{line}\n")))
        }
    }
}

enum Action {
    Print(ExitCode),
    Install(Order),
    ReadBack(Order),
}

/// What is to be in place, and the program that sees to it.
struct Order {
    ruleset: PathBuf,
    digest: String,
    nft: PathBuf,
}

fn parse(args: Vec<OsString>) -> Result<Action, Error> {
    let mut parser = lexopt::Parser::from_args(args);
    let (mut ruleset, mut digest, mut nft, mut is_read_back) = (None, None, None, false);
    while let Some(arg) = parser.next()? {
        match arg {
            lexopt::Arg::Long("ruleset") => ruleset = Some(PathBuf::from(parser.value()?)),
            lexopt::Arg::Long("digest") => digest = Some(parser.value()?.string()?),
            lexopt::Arg::Long("nft") => nft = Some(PathBuf::from(parser.value()?)),
            lexopt::Arg::Long("read-back") => is_read_back = true,
            lexopt::Arg::Short('h') | lexopt::Arg::Long("help") => {
                return Ok(Action::Print(cli::print(HELP)));
            }
            lexopt::Arg::Short('V') | lexopt::Arg::Long("version") => {
                return Ok(Action::Print(cli::version(NAME)));
            }
            other => return Err(usage::unexpected(&other, NAME, HELP)),
        }
    }
    let ruleset = usage::required("ruleset", ruleset)?;
    let digest = usage::required("digest", digest)?;
    let nft: PathBuf = usage::required("nft", nft)?;
    if !nft.is_absolute() {
        return Err(Error::usage(format!(
            "the option \"--nft\" needs an absolute path, not {nft:?}"
        )));
    }
    let order = Order {
        ruleset,
        digest,
        nft,
    };
    Ok(if is_read_back {
        Action::ReadBack(order)
    } else {
        Action::Install(order)
    })
}

/// The hook.
fn install(order: &Order) -> Result<(), NftError> {
    check_state(io::stdin().lock())?;
    check_place()?;
    let ruleset = read_ruleset(&order.ruleset, &order.digest)?;
    let asked = parse_ruleset(order, &ruleset)?;
    keep_net_admin()?;
    program::apply(&order.nft, &ruleset)?;
    asked.expect(&Table::parse(&program::list(&order.nft)?)?)
}

/// From the host, of a container that runs.
fn read_back(order: &Order, pidfd: &OwnedFd) -> Result<ReadBack, NftError> {
    let ruleset = read_ruleset(&order.ruleset, &order.digest)?;
    let asked = parse_ruleset(order, &ruleset)?;
    enter(pidfd)?;
    keep_net_admin()?;
    let listing = program::list(&order.nft)?;
    let found = Table::parse(&listing)?;
    asked.expect(&found)?;
    Ok(ReadBack {
        digest: found.digest()?,
        counts: Counts::parse(&listing)?,
    })
}

/// What the runtime says of a container (OCI runtime specification, "State").
#[derive(Deserialize)]
struct State {
    #[serde(rename = "ociVersion")]
    _version: String,
    #[serde(rename = "id")]
    _id: String,
    status: String,
}

/// Half a state, or that of a container which runs already, means that this
/// is not called as a createContainer hook.
pub(crate) fn check_state(stdin: impl Read) -> Result<(), NftError> {
    let mut text = Vec::new();
    let read = stdin.take(LIMIT + 1).read_to_end(&mut text);
    read.map_err(|error| NftError::State(error.to_string()))?;
    if text.len() as u64 > LIMIT {
        return Err(NftError::State(format!("it has more than {LIMIT} bytes")));
    }
    let state: State =
        serde_json::from_slice(&text).map_err(|error| NftError::State(error.to_string()))?;
    // runc says the first, crun the second.
    match state.status.as_str() {
        "creating" | "created" => Ok(()),
        other => Err(NftError::State(format!(
            "the container is not being created: it is {other:?}"
        ))),
    }
}

/// The rules belong into a network namespace that was made for the container:
/// one owned by the user namespace that this process is in, which is not the
/// host's. Neither the host's network nor podman's own qualifies.
fn check_place() -> Result<(), NftError> {
    let wrong = |error: io::Error| NftError::Namespace(error.to_string());
    if namespace::is_in_initial_user_namespace().map_err(wrong)? {
        return Err(NftError::Namespace(
            "there is no container around this process".to_owned(),
        ));
    }
    let network = namespace::own("net").map_err(wrong)?;
    let foreign = || NftError::Namespace("it does not belong to the container".to_owned());
    let owner = namespace::owning_user_namespace(network.as_fd()).map_err(|_| foreign())?;
    let user = namespace::own("user").map_err(wrong)?;
    if namespace::id(owner).map_err(wrong)? == namespace::id(user).map_err(wrong)? {
        Ok(())
    } else {
        Err(foreign())
    }
}

/// A regular file with the content that was meant when the container was
/// asked for. The digest comes from where the order comes from, so it does not
/// matter whose the file is.
fn read_ruleset(path: &Path, digest: &str) -> Result<Vec<u8>, NftError> {
    let wrong = |why: String| NftError::File {
        path: path.to_owned(),
        why,
    };
    // A FIFO would never end, nor even open.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::empty())
        .map(File::from)
        .map_err(|error| wrong(format!("cannot be opened: {error}")))?;
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err(wrong("is no regular file".to_owned()));
    }
    let mut text = Vec::new();
    let read = file.take(LIMIT).read_to_end(&mut text);
    read.map_err(|error| wrong(format!("cannot be read: {error}")))?;
    if sha256(&text) == digest {
        Ok(text)
    } else {
        Err(wrong("is not the one that was meant".to_owned()))
    }
}

fn parse_ruleset(order: &Order, text: &[u8]) -> Result<Table, NftError> {
    Table::parse(text).map_err(|error| NftError::File {
        path: order.ruleset.clone(),
        why: format!("is none: {error}"),
    })
}

/// Enters the network of the process, through the user namespace that owns it.
fn enter(pidfd: &OwnedFd) -> Result<(), NftError> {
    let wrong = |error: io::Error| NftError::Namespace(error.to_string());
    let network = namespace::of_process(pidfd.as_fd(), "net").map_err(wrong)?;
    let own = namespace::own("net").map_err(wrong)?;
    if namespace::id(&network).map_err(wrong)? == namespace::id(own).map_err(wrong)? {
        return Err(NftError::Namespace("it is the one of the host".to_owned()));
    }
    let owner = namespace::owning_user_namespace(network.as_fd()).map_err(wrong)?;
    namespace::join(&owner, LinkNameSpaceType::Network, &network).map_err(wrong)
}

fn keep_net_admin() -> Result<(), NftError> {
    namespace::keep_only(CapabilitySet::NET_ADMIN)
        .map_err(|error| NftError::Namespace(format!("it cannot be changed from here: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(text: &str) -> Result<(), NftError> {
        check_state(text.as_bytes())
    }

    #[test]
    fn the_state_of_a_container_under_creation_is_taken() {
        state(r#"{"ociVersion":"1.0","id":"a","pid":0,"root":"/r","status":"created"}"#).unwrap();
        state(r#"{"ociVersion":"1.2.0","id":"a","status":"creating","annotations":{"a":"b"}}"#)
            .unwrap();
    }

    #[test]
    fn any_other_state_is_refused() {
        for text in [
            "",
            "{",
            "[]",
            r#"{"ociVersion":"1.0","id":"a","status":"created""#,
            r#"{"ociVersion":"1.0","id":"a","status":"running"}"#,
            r#"{"ociVersion":"1.0","status":"created"}"#,
            r#"{"ociVersion":"1.0","id":"a","status":"created"} x"#,
        ] {
            assert!(state(text).is_err(), "{text}");
        }
        let padding = " ".repeat(1 << 20);
        let long = format!(r#"{padding}{{"ociVersion":"1.0","id":"a","status":"created"}}"#);
        let error = state(&long).unwrap_err();
        assert!(error.to_string().contains("more than"), "{error}");
    }

    #[test]
    fn the_ruleset_must_be_a_file_with_the_digest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules");
        std::fs::write(&path, "{}").unwrap();
        let digest = sha256(b"{}");
        assert_eq!(read_ruleset(&path, &digest).unwrap(), b"{}");
        let said = |path: &Path, digest: &str| {
            let error = read_ruleset(path, digest).unwrap_err();
            error.to_string()
        };
        assert!(said(&path, &sha256(b"{} ")).contains("not the one that was meant"));
        assert!(said(&path, "").contains("not the one that was meant"));
        assert!(said(folder.path(), &digest).contains("no regular file"));
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(said(&link, &digest).contains("cannot be opened"));
        let fifo = folder.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            Mode::RUSR,
            0,
        )
        .unwrap();
        assert!(said(&fifo, &digest).contains("no regular file"));
        std::fs::write(&path, vec![b' '; (1 << 20) + 1]).unwrap();
        assert!(said(&path, &sha256(&vec![b' '; (1 << 20) + 1])).contains("not the one"));
    }

    #[test]
    fn wrong_use_is_refused() {
        let parse = |words: &[&str]| parse(words.iter().map(OsString::from).collect());
        let all = ["--ruleset", "/r", "--digest", "d", "--nft", "/sbin/nft"];
        assert!(matches!(parse(&all), Ok(Action::Install(_))));
        let read_back = [&all[..], &["--read-back"]].concat();
        assert!(matches!(parse(&read_back), Ok(Action::ReadBack(_))));
        for wrong in [&[][..], &all[..4], &all[2..], &all[..5]] {
            assert!(matches!(parse(wrong), Err(Error::Usage(_))), "{wrong:?}");
        }
        let relative = ["--ruleset", "/r", "--digest", "d", "--nft", "nft"];
        assert!(matches!(parse(&relative), Err(Error::Usage(_))));
    }
}
