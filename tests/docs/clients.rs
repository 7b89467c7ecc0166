//! The README shows the settings of clients that `umwelt-install client` prints.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// What it prints for somebody whose home is that of the README.
fn printed(client: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_umwelt"));
    command.arg0("umwelt-install").args(["client", client]);
    let output = command
        .env_clear()
        .env("HOME", "/home/you")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn commands_of_clients_are_those_that_are_printed() {
    let readme = super::read("README.md");
    for (client, command) in [
        (
            "claude",
            "claude mcp add --scope user umwelt -- /home/you/.local/bin/umwelt-mcp",
        ),
        ("claude", "claude --tools \"\""),
        ("codex", "codex --disable shell_tool --sandbox read-only"),
    ] {
        assert!(
            readme.contains(command) && printed(client).contains(command),
            "{command}"
        );
    }
}
