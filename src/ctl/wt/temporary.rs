//! A directory of this call alone. What killed calls have left of theirs is
//! removed by the next one.

use std::io;
use std::path::Path;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::Pid;

use super::tree::Tree;
use crate::gitdir::Directory;
use crate::sys::lock;

const MAX_NUMBER: u32 = 9999;

/// It is gone when this is dropped.
#[derive(Debug)]
pub(super) struct Temporary {
    dir: Directory,
    tree: Tree,
}

impl Temporary {
    /// Named PREFIX, the number of this process, and another one; its mode is
    /// 0700.
    pub(super) fn create(above: &Path, prefix: &str) -> Result<Temporary, String> {
        let real = std::fs::canonicalize(above).map_err(|error| format!("{above:?}: {error}"))?;
        let above = Directory::open(&real)?;
        sweep(&above, prefix);
        let failed = |error: io::Error| format!("{real:?}: {error}");
        let name = create_own(&above, prefix).map_err(failed)?;
        let dir = above.dir(&name)?;
        let tree = Tree::of(&above, name.as_ref(), &dir).map_err(failed)?;
        let made = Temporary { dir, tree };
        lock::try_exclusive(&made.dir).map_err(failed)?;
        Ok(made)
    }

    pub(super) fn dir(&self) -> &Directory {
        &self.dir
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Err(error) = self.tree.remove() {
            log::warn!("cannot remove {:?}: {error}", self.dir.path());
        }
    }
}

fn create_own(above: &Directory, prefix: &str) -> io::Result<String> {
    let pid = std::process::id();
    for number in 0..MAX_NUMBER {
        let name = format!("{prefix}{pid}-{number}");
        match rustix::fs::mkdirat(above, &name, Mode::RWXU) {
            Ok(()) => return Ok(name),
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn sweep(above: &Directory, prefix: &str) {
    for name in above.names().into_iter().flatten() {
        if !name.to_str().is_some_and(|name| is_left(name, prefix)) {
            continue;
        }
        let Ok(dir) = above.dir(&name) else { continue };
        // A process in another container may have the number that is free here.
        if !lock::try_exclusive(&dir).unwrap_or(false) {
            continue;
        }
        let removed = Tree::of(above, &name, &dir).and_then(|tree| tree.remove());
        if let Err(error) = removed {
            log::warn!("cannot remove {:?}: {error}", dir.path());
        }
    }
}

fn is_left(name: &str, prefix: &str) -> bool {
    let numbers = name
        .strip_prefix(prefix)
        .and_then(|rest| rest.split_once('-'));
    let pid = numbers
        .filter(|(_, number)| number.parse::<u32>().is_ok())
        .and_then(|(pid, _)| Pid::from_raw(pid.parse().ok().filter(|pid| *pid > 0)?));
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) == Err(Errno::SRCH))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn only_what_killed_calls_have_left_is_swept() {
        let temp = tempfile::tempdir().unwrap();
        let data = temp.path().canonicalize().unwrap();
        let mut child = Command::new("true").spawn().unwrap();
        let ended = child.id();
        child.wait().unwrap();
        let left = format!("worktree-{ended}-0");
        let held = format!("worktree-{ended}-1");
        let alive = format!("worktree-{}-7", std::process::id());
        let kept = [
            held.as_str(),
            &alive,
            "worktree-0-1",
            "worktree-x-1",
            "umwelt-wt-1-1",
        ];
        for name in kept.iter().chain([&left.as_str()]) {
            std::fs::create_dir_all(data.join(name).join("files/a")).unwrap();
        }
        let of_another = Directory::open(&data.join(&held)).unwrap();
        assert!(lock::try_exclusive(&of_another).unwrap());
        drop(Temporary::create(&data, "worktree-").unwrap());
        assert!(!data.join(left).exists());
        for name in kept {
            assert!(data.join(name).join("files/a").exists(), "{name}");
        }
    }
}
