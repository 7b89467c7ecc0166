//! What is to be seen of one sandbox on the host.

use std::time::{Duration, Instant};

use crate::podman_common::sandbox::Place;
use crate::podman_common::{PATIENCE, host, wait_for};

/// The command line of pid 1; as long as the OCI runtime has not made room
/// for it, the process is called otherwise.
const INIT: &str = "/run/umwelt/umwelt-init";

/// Host pids of pid 1 of all sandboxes of the place: what has our program's
/// name and the workspace among its mounts.
pub(crate) fn inits(place: &Place) -> Vec<u32> {
    let workspace = place.workspace.to_str().expect("UTF-8");
    let mounts = |pid| std::fs::read_to_string(format!("/proc/{pid}/mountinfo"));
    let mut pids = host::processes_with(INIT);
    pids.retain(|pid| {
        host::command_line(*pid).starts_with(INIT)
            && mounts(*pid).is_ok_and(|table| table.contains(workspace))
    });
    pids
}

/// Host pids of processes whose command line begins with `program` and names
/// the sandbox's container.
pub(crate) fn processes(place: &Place, program: &str) -> Vec<u32> {
    let mut pids = host::processes_with(&place.name());
    pids.retain(|pid| host::command_line(*pid).starts_with(program));
    pids
}

/// Everything that must be gone after an end; empty when all of it is.
pub(crate) fn traces(place: &Place) -> Vec<String> {
    let workspace = place.workspace.to_str().expect("UTF-8");
    let mut pids = inits(place);
    pids.extend(host::processes_with(&place.name()));
    pids.extend(host::processes_with(workspace));
    let mut found: Vec<String> = pids
        .into_iter()
        .map(|pid| format!("process {pid}: {}", host::command_line(pid)))
        .collect();
    let files = [
        place.socket(),
        host::runtime_dir().join(place.name()),
        place.state().join("output"),
    ];
    let files = files.into_iter().filter(|path| path.exists());
    found.extend(files.map(|path| path.display().to_string()));
    // The slow look last, and only if it can be the one that counts.
    if found.is_empty() {
        found = containers(place);
    }
    found
}

/// Containers of the sandbox's name, with those of which podman itself does
/// not know.
pub(crate) fn containers(place: &Place) -> Vec<String> {
    let format = "--format={{.Names}} {{.ID}} {{.State}}";
    let list = host::podman(&["ps", "--all", "--external", "--no-trunc", format]);
    let name = format!("{} ", place.name());
    list.lines()
        .filter(|line| line.starts_with(&name))
        .map(str::to_owned)
        .collect()
}

/// Whatever is on its way out may get there.
pub(crate) fn assert_gone(place: &Place) {
    let end = Instant::now() + PATIENCE;
    loop {
        let is_last = Instant::now() >= end;
        let found = traces(place);
        if found.is_empty() {
            return;
        }
        assert!(!is_last, "left: {found:#?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// No pid 1 may go on for longer than this without its control plane.
pub(crate) fn assert_no_orphan(place: &Place) {
    const LIMIT: Duration = Duration::from_secs(10);
    wait_for("the end of the orphans", LIMIT, || {
        inits(place).is_empty().then_some(())
    });
}
