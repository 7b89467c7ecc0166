//! A busy mount -> the processes inside that use it, as far as can be told.
//! To be called outside, where `/proc` is the host's.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::process::Pid;

use crate::sys::mountinfo::Entry;
use crate::sys::process;
use crate::text;

/// Most processes that are named.
const MAX_NAMED: usize = 4;

/// One line for a person: `in use by: 12 (bash -c …), …`.
pub(super) fn describe(pid_namespace: u64, mount: &Entry) -> String {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let named = pids
        .filter_map(Pid::from_raw)
        .filter(|pid| {
            let dir = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
            is_in(&dir, pid_namespace) && uses(&dir, mount)
        })
        .filter_map(process::describe)
        .take(MAX_NAMED);
    render(named)
}

fn render(holders: impl Iterator<Item = (u32, String)>) -> String {
    let names: Vec<String> = holders
        .map(|(pid, command)| format!("{pid} ({})", text::printable(&command)))
        .collect();
    if names.is_empty() {
        "in use by something inside".to_owned()
    } else {
        format!("in use by: {}", names.join(", "))
    }
}

fn is_in(dir: &Path, pid_namespace: u64) -> bool {
    fs::metadata(dir.join("ns/pid")).is_ok_and(|found| found.ino() == pid_namespace)
}

fn uses(dir: &Path, mount: &Entry) -> bool {
    let leads = |link: &Path| mount_of(link).is_ok_and(|id| id == mount.id);
    leads(&dir.join("cwd"))
        || leads(&dir.join("root"))
        || fs::read_dir(dir.join("fd"))
            .into_iter()
            .flatten()
            .flatten()
            .any(|entry| leads(&entry.path()))
        || fs::read(dir.join("maps")).is_ok_and(|maps| maps_below(&maps, &mount.mount_point))
}

/// The mount that a link in proc leads to. Nothing is opened by this: it may
/// be a pipe or a device.
fn mount_of(link: &Path) -> io::Result<u64> {
    let found = rustix::fs::statx(CWD, link, AtFlags::NO_AUTOMOUNT, StatxFlags::MNT_ID)?;
    Ok(found.stx_mnt_id)
}

/// A mapping names the path that its file was opened by, at the end of a line.
fn maps_below(maps: &[u8], path: &Path) -> bool {
    maps.split(|byte| *byte == b'\n').any(|line| {
        let name = line.iter().position(|byte| *byte == b'/');
        let name = name.and_then(|at| std::str::from_utf8(line.get(at..)?).ok());
        name.is_some_and(|name| Path::new(name).starts_with(path))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_named_in_one_harmless_line() {
        let holders = [(7, "vi a\nb".to_owned()), (9, "x".to_owned())];
        let line = render(holders.into_iter());
        assert_eq!(line, "in use by: 7 (vi a\\nb), 9 (x)");
        assert_eq!(render(std::iter::empty()), "in use by something inside");
    }

    #[test]
    fn mappings_count_by_whole_components() {
        let maps = b"7f00-7f01 r-xp 00000000 fe:00 12                         /g/lib.so\n";
        assert!(maps_below(maps, Path::new("/g")));
        assert!(!maps_below(maps, Path::new("/g/l")));
        assert!(!maps_below(
            b"7f00-7f01 rw-p 0 00:00 0 [heap]\n",
            Path::new("/g")
        ));
    }
}
