//! The memory of this process, as the kernel counts it.
#![allow(unsafe_code)]

use std::io;

/// Lets go of the pages of the program's code: they are read from the file
/// again when they are needed. What only the start has used is not counted for
/// the rest of a long life then, and does not stand in anybody's way.
pub(crate) fn release_code() -> io::Result<()> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    for (start, end) in maps.lines().filter_map(code) {
        // SAFETY: only pages that are executable, and not writable, and come
        // from a file: the linker has not changed them, so that what is read
        // again is the same. No Rust object lives in them.
        unsafe {
            let advice = rustix::mm::Advice::LinuxDontNeed;
            rustix::mm::madvise(start as *mut std::ffi::c_void, end - start, advice)?;
        }
    }
    Ok(())
}

/// The addresses of a mapping of code: `start-end r-xp offset device inode path`.
fn code(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let is_code = fields.next()? == "r-xp" && fields.nth(2)? != "0";
    let address = |text| usize::from_str_radix(text, 16).ok();
    is_code.then_some((address(start)?, address(end)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_what_is_mapped_from_a_file_to_be_executed() {
        let line = |mode, inode| format!("7f00-7f20 {mode} 00093000 fe:00 {inode}    /x y");
        assert_eq!(code(&line("r-xp", 12)), Some((0x7f00, 0x7f20)));
        for other in [
            line("r--p", 12),
            line("rwxp", 12),
            line("r-xp", 0),
            String::new(),
        ] {
            assert_eq!(code(&other), None, "{other}");
        }
    }

    #[test]
    fn program_goes_on_without_the_pages_of_its_code() {
        release_code().unwrap();
        assert_eq!("goes on".to_uppercase(), "GOES ON");
    }
}
