//! The memory of this process, as the kernel counts it.
#![allow(unsafe_code)]

use std::io;

/// Lets go of the pages of the program's file: its code and its constants are
/// read from there again when they are needed. What only the start or a burst
/// of work has used is not counted for the rest of a long life then, and does
/// not stand in anybody's way.
pub(crate) fn release_file_pages() -> io::Result<()> {
    let maps = std::fs::read_to_string("/proc/self/smaps")?;
    for (start, end) in clean_mappings(&maps) {
        // SAFETY: only pages that come from a file, can not be written to, and
        // were not changed since (the linker's relocations are such changes),
        // so that what is read again is the same.
        unsafe {
            let advice = rustix::mm::Advice::LinuxDontNeed;
            rustix::mm::madvise(start as *mut std::ffi::c_void, end - start, advice)?;
        }
    }
    Ok(())
}

/// The addresses of the mappings that show a file as it is, in a text of the
/// form of proc_pid_smaps(5): a line with addresses, then lines `Name: value`.
fn clean_mappings(smaps: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut candidate = None;
    for line in smaps.lines() {
        if let Some(changed) = line.strip_prefix("Anonymous:") {
            found.extend(candidate.take().filter(|_| changed.trim() == "0 kB"));
        } else if !line.starts_with(|c: char| c.is_ascii_uppercase()) {
            candidate = read_only_file(line);
        }
    }
    found
}

/// The addresses in `start-end r-xp offset device inode path`.
fn read_only_file(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let is_read_only = matches!(fields.next()?, "r-xp" | "r--p");
    let is_file = fields.nth(2)? != "0";
    let address = |text| usize::from_str_radix(text, 16).ok();
    (is_read_only && is_file).then_some((address(start)?, address(end)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(mode: &str, inode: u32, anonymous: u32) -> String {
        format!(
            "7f00-7f20 {mode} 00093000 fe:00 {inode}    /x y\nSize: 128 kB\nRss: 4 kB\n\
             Anonymous:   {anonymous} kB\nVmFlags: rd ex\n"
        )
    }

    #[test]
    fn mappings_of_a_file_that_nobody_changed_are_clean() {
        let clean = mapping("r-xp", 12, 0) + &mapping("r--p", 12, 0);
        assert_eq!(clean_mappings(&clean), vec![(0x7f00, 0x7f20); 2]);
        for other in [
            mapping("rwxp", 12, 0),
            mapping("rw-p", 12, 0),
            mapping("r--s", 12, 0),
            mapping("r-xp", 0, 0),
            // The linker has written here, and then protected it.
            mapping("r--p", 12, 4),
            "7f00-7f20 r-xp".to_owned(),
            String::new(),
        ] {
            assert_eq!(clean_mappings(&other), vec![], "{other}");
        }
    }

    #[test]
    fn program_goes_on_without_the_pages_of_its_file() {
        let own = std::fs::read_to_string("/proc/self/smaps").unwrap();
        assert!(clean_mappings(&own).len() > 1, "{own}");
        release_file_pages().unwrap();
        assert_eq!("goes on".to_uppercase(), "GOES ON");
    }
}
