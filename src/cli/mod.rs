//! What every applet does the same way: reads its arguments, and prints errors,
//! help, version, the log.
//!
//! The only module that writes to stdout and stderr on its own account.

pub(crate) mod args;
pub(crate) mod program;
pub(crate) mod usage;

use std::io::Write;
use std::process::ExitCode;

use crate::error::Error;
use crate::text;

/// Reports an error on stderr, as `NAME: message` and a `hint:` line.
pub(crate) fn report(name: &str, error: &Error) -> ExitCode {
    let mut lines = format!("{name}: {}\n", text::printable(&error.to_string()));
    if let Some(hint) = error.hint_of(name) {
        for line in hint.lines() {
            lines.push_str(&format!("hint: {}\n", text::printable(line)));
        }
    }
    write_stderr(lines.as_bytes());
    ExitCode::from(error.exit_code())
}

/// Prints to stdout what is not the last of it; false when it cannot be read,
/// or written, any more.
pub(crate) fn write_stdout(text: &str) -> bool {
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .is_ok()
}

/// Prints to stdout; a reader that has gone away is not an error.
pub(crate) fn print(text: &str) -> ExitCode {
    let mut stdout = std::io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

pub(crate) fn write_stderr(bytes: &[u8]) {
    // Nobody is left to tell when stderr is gone.
    drop(std::io::stderr().lock().write_all(bytes));
}

pub(crate) fn version(name: &str) -> ExitCode {
    print(&format!("{name} {}\n", env!("CARGO_PKG_VERSION")))
}

/// Starts the log on stderr; `UMWELT_LOG` sets the level (default `warn`).
pub(crate) fn start_log(name: &'static str) {
    let mut builder = env_logger::Builder::new();
    builder
        .filter_level(log::LevelFilter::Warn)
        .parse_env("UMWELT_LOG")
        .format(move |out, record| {
            let message = text::printable(&record.args().to_string());
            writeln!(
                out,
                "{name}: {}: {message}",
                record.level().as_str().to_lowercase()
            )
        });
    drop(builder.try_init());
}
