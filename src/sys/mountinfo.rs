//! `/proc/PID/mountinfo` (proc_pid_mountinfo(5)).

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// One mount of a process's mount namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// What statx(2) calls `stx_mnt_id`. Given to another mount later on.
    pub(crate) id: u64,
    /// `major:minor` of the file system.
    pub(crate) device: String,
    /// Which directory of the file system is mounted; `/` for all of it.
    pub(crate) root: PathBuf,
    pub(crate) mount_point: PathBuf,
    /// Per-mount options: `rw`, `nosuid`, …
    options: String,
    pub(crate) fs_type: String,
    /// Options of the file system as a whole.
    super_options: String,
    /// `shared:N`, `master:N`, …: how mount events propagate.
    pub(crate) propagation: String,
}

impl Entry {
    pub(crate) fn has(&self, option: &str) -> bool {
        self.options.split(',').any(|have| have == option)
    }

    /// Not writable by this mount, or by nothing at all.
    pub(crate) fn is_read_only(&self) -> bool {
        self.has("ro") || self.super_options.split(',').any(|have| have == "ro")
    }

    /// The value of a `key=value` option of the file system.
    pub(crate) fn super_option(&self, key: &str) -> Option<&str> {
        self.super_options
            .split(',')
            .find_map(|option| option.strip_prefix(key)?.strip_prefix('='))
    }
}

pub(crate) fn of_self() -> io::Result<Vec<Entry>> {
    load("/proc/self/mountinfo")
}

pub(crate) fn load(path: &str) -> io::Result<Vec<Entry>> {
    parse_table(&std::fs::read(path)?)
}

pub(crate) fn parse_table(bytes: &[u8]) -> io::Result<Vec<Entry>> {
    bytes
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| {
            parse(line).ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("unreadable line {:?}", String::from_utf8_lossy(line)),
                )
            })
        })
        .collect()
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn parse(line: &[u8]) -> Option<Entry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let device = text(fields.nth(1)?);
    let root = unescape(fields.next()?);
    let mount_point = unescape(fields.next()?);
    let options = text(fields.next()?);
    let propagation: Vec<String> = fields
        .by_ref()
        .take_while(|field| *field != b"-")
        .map(text)
        .collect();
    let fs_type = text(fields.next()?);
    let super_options = text(fields.nth(1)?);
    Some(Entry {
        id,
        device,
        root,
        mount_point,
        options,
        fs_type,
        super_options,
        propagation: propagation.join(" "),
    })
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field).into_owned()
}

/// Space, tab, newline and backslash stand as three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, after)) = rest.split_first() {
        let digits = after
            .get(..3)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(code) if *byte == b'\\' => {
                out.push(code);
                rest = after.get(3..).unwrap_or_default();
            }
            _ => {
                out.push(*byte);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn fields_are_found_with_and_without_propagation() {
        let entry = parse(
            br"36 35 98:0 /a /mnt\040x\134y rw,nosuid master:1 shared:2 - tmpfs tmp rw,size=4k",
        )
        .unwrap();
        assert_eq!(entry.mount_point, Path::new(r"/mnt x\y"));
        assert_eq!((entry.id, entry.device.as_str()), (36, "98:0"));
        assert_eq!(entry.root, Path::new("/a"));
        assert!(entry.has("nosuid") && !entry.has("suid") && !entry.is_read_only());
        assert_eq!(entry.propagation, "master:1 shared:2");
        assert_eq!(entry.super_option("size"), Some("4k"));
        let plain = parse(b"1 0 0:1 / / ro - overlay overlay rw,lowerdir=/x").unwrap();
        assert!(plain.is_read_only() && plain.propagation.is_empty());
        assert_eq!(plain.fs_type, "overlay");
    }

    #[test]
    fn short_lines_are_not_read() {
        assert_eq!(parse(b"36 35 98:0 /a"), None);
        assert_eq!(parse(b"x 35 98:0 / /a rw - ext4 d rw"), None);
    }

    #[test]
    fn own_table_can_be_read() {
        assert!(
            of_self()
                .unwrap()
                .iter()
                .any(|entry| entry.mount_point == Path::new("/"))
        );
    }
}
