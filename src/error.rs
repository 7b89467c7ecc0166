//! The top error: what went wrong, how to fix it, and the exit code.

use std::ffi::OsString;
use std::fmt;
use std::io;

use crate::api::{ApiError, ErrorKind};
use crate::cli::usage::UsageError;
use crate::config::ConfigError;
use crate::ctl::CtlError;
use crate::dirs::DirsError;
use crate::egress::EgressError;
use crate::gateway::GatewayError;
use crate::install::InstallError;
use crate::nft::NftError;
use crate::podman::PodmanError;
use crate::run::preflight::PreflightError;
use crate::run::verify::VerifyError;
use crate::trust::TrustError;
use crate::workspace::WorkspaceError;

/// Exit codes of all applets; `umwelt-run` documents them as its interface.
pub(crate) mod exit_code {
    pub(crate) const FAILURE: u8 = 1;
    pub(crate) const USAGE: u8 = 2;
    pub(crate) const NO_DELEGATION: u8 = 3;
}

/// Any failure of any applet.
#[derive(Debug)]
#[expect(
    clippy::error_impl_error,
    reason = "the one top error; each layer has its own below"
)]
pub(crate) enum Error {
    UnknownApplet(Option<OsString>),
    Usage(UsageError),
    Config(ConfigError),
    Dirs(DirsError),
    Workspace(WorkspaceError),
    /// The same, with the command that was called.
    WorkspaceOf(WorkspaceError, String),
    Preflight(PreflightError),
    Nft(NftError),
    Egress(EgressError),
    Podman(PodmanError),
    Verify(VerifyError),
    /// An answer of the control plane, or the lack of one.
    Api(ApiError),
    Ctl(CtlError),
    Trust(TrustError),
    Gateway(GatewayError),
    Install(InstallError),
    Io {
        what: String,
        source: io::Error,
    },
}

impl Error {
    /// Wraps an OS error with what was being done, in the form `bind "PATH"`.
    pub(crate) fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Error {
        Error::Io {
            what: what.into(),
            source: source.into(),
        }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Error {
        Error::Usage(message.into().into())
    }

    /// Wrong words are told with the command whose `--help` has the right ones,
    /// and a wrong workspace with the one that can be given another.
    pub(crate) fn of_command(self, command: &str) -> Error {
        match self {
            Error::Usage(error) => Error::Usage(error.of_command(command)),
            Error::Workspace(error) => Error::WorkspaceOf(error, command.to_owned()),
            other => other,
        }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Error::UnknownApplet(_)
            | Error::Usage(_)
            | Error::Config(_)
            | Error::Dirs(_)
            | Error::Workspace(_)
            | Error::WorkspaceOf(..)
            | Error::Trust(TrustError::Config(_)) => exit_code::USAGE,
            Error::Preflight(error) => error.exit_code(),
            Error::Api(error) => error.kind.exit_code(),
            Error::Nft(_)
            | Error::Egress(_)
            | Error::Podman(_)
            | Error::Verify(_)
            | Error::Ctl(_)
            | Error::Trust(_)
            | Error::Gateway(_)
            | Error::Install(_)
            | Error::Io { .. } => exit_code::FAILURE,
        }
    }

    /// The same, as it is told by the program of this name.
    pub(crate) fn hint_of(&self, program: &str) -> Option<String> {
        match self {
            Error::Workspace(error) => Some(error.hint_of(program)),
            other => other.hint(),
        }
    }

    /// The way out, where there is one to name.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Error::UnknownApplet(name) => Some(crate::applet::hint(name.as_deref())),
            Error::Usage(error) => Some(error.hint()),
            Error::Config(error) => error.hint(),
            Error::Dirs(error) => error.hint(),
            Error::Workspace(error) => Some(error.hint()),
            Error::WorkspaceOf(error, command) => Some(error.hint_of(command)),
            Error::Preflight(error) => error.hint(),
            Error::Nft(error) => error.hint(),
            Error::Egress(error) => error.hint(),
            Error::Podman(error) => error.hint(),
            Error::Verify(error) => error.hint(),
            Error::Api(error) => error.hint.clone(),
            Error::Ctl(error) => error.hint(),
            Error::Trust(error) => error.hint(),
            Error::Gateway(error) => error.hint(),
            Error::Install(error) => error.hint(),
            Error::Io { .. } => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::UnknownApplet(Some(name)) => write!(f, "unknown program name {name:?}"),
            Error::UnknownApplet(None) => f.write_str("no program name given"),
            Error::Usage(error) => error.fmt(f),
            Error::Config(error) => error.fmt(f),
            Error::Dirs(error) => error.fmt(f),
            Error::Workspace(error) | Error::WorkspaceOf(error, _) => error.fmt(f),
            Error::Preflight(error) => error.fmt(f),
            Error::Nft(error) => error.fmt(f),
            Error::Egress(error) => error.fmt(f),
            Error::Podman(error) => error.fmt(f),
            Error::Verify(error) => error.fmt(f),
            Error::Api(error) => error.fmt(f),
            Error::Ctl(error) => error.fmt(f),
            Error::Trust(error) => error.fmt(f),
            Error::Gateway(error) => error.fmt(f),
            Error::Install(error) => error.fmt(f),
            Error::Io { what, source } => write!(f, "cannot {what}: {source}"),
        }
    }
}

impl std::error::Error for Error {}

/// A failure to start a sandbox, as clients are told of it.
impl From<&Error> for ApiError {
    fn from(error: &Error) -> ApiError {
        let kind = match (error, error.exit_code()) {
            (Error::Api(error), _) => error.kind,
            (_, exit_code::USAGE) => ErrorKind::BadConfig,
            (_, exit_code::NO_DELEGATION) => ErrorKind::NoDelegation,
            _ => ErrorKind::StartFailed,
        };
        ApiError {
            kind,
            message: error.to_string(),
            hint: error.hint(),
        }
    }
}

macro_rules! from_layer {
    ($($layer:ty => $variant:ident),* $(,)?) => {
        $(impl From<$layer> for Error {
            fn from(error: $layer) -> Error {
                Error::$variant(error)
            }
        })*
    };
}

from_layer! {
    ConfigError => Config,
    DirsError => Dirs,
    WorkspaceError => Workspace,
    PreflightError => Preflight,
    NftError => Nft,
    EgressError => Egress,
    PodmanError => Podman,
    VerifyError => Verify,
    ApiError => Api,
    CtlError => Ctl,
    TrustError => Trust,
    GatewayError => Gateway,
    InstallError => Install,
}
