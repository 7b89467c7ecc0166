//! The name of the user, without libc's name service: a static binary cannot
//! load its modules.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// The login name of `uid`, from /etc/passwd, else from `$USER`, else `user`.
/// Only plain names are taken: it becomes a line of the sandbox's /etc/passwd.
pub(crate) fn name(uid: u32) -> String {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    find(&passwd, uid)
        .or_else(|| std::env::var("USER").ok())
        .filter(|name| is_plain(name))
        .unwrap_or_else(|| "user".to_owned())
}

/// Whether another user may write a file, besides root. The group of a user
/// alone, as it comes with a umask of 002, is no other user.
pub(crate) fn others_can_write(file: &Metadata) -> bool {
    let mode = file.mode();
    if mode & 0o022 == 0 {
        return false;
    }
    let user = name(rustix::process::geteuid().as_raw());
    let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
    mode & 0o002 != 0 || !is_private_group(&groups, file.gid(), &user)
}

/// A group that is called like the user, and has nobody else in it.
fn is_private_group(groups: &str, gid: u32, user: &str) -> bool {
    groups.lines().any(|line| {
        let mut fields = line.split(':');
        let name = fields.next();
        let is_it = fields.nth(1).and_then(|gid| gid.parse().ok()) == Some(gid);
        let mut members = fields.next().unwrap_or_default().split(',');
        let is_alone = members.all(|member| member.is_empty() || member == user);
        is_it && name == Some(user) && is_alone
    })
}

fn find(passwd: &str, uid: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 32
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
        && !name.starts_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_by_uid() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nu:x:1000:1000::/home/u:/bin/sh\nbad\n";
        assert_eq!(find(passwd, 1000).as_deref(), Some("u"));
        assert_eq!(find(passwd, 1), None);
    }

    #[test]
    fn group_of_a_user_alone_is_private() {
        let groups = "root:x:0:\nu:x:1000:\nv:x:1001:v\nw:x:1002:w,u\nusers:x:100:\nbad\n";
        assert!(is_private_group(groups, 1000, "u"));
        assert!(is_private_group(groups, 1001, "v"));
        for (gid, user) in [(1002, "w"), (100, "u"), (1000, "v"), (7, "u"), (0, "u")] {
            assert!(!is_private_group(groups, gid, user), "{gid} {user}");
        }
    }

    #[test]
    fn files_that_others_can_write_are_known_by_their_mode() {
        use std::os::unix::fs::PermissionsExt;
        let file = tempfile::tempfile().unwrap();
        let with = |mode| {
            let permissions = std::fs::Permissions::from_mode(mode);
            file.set_permissions(permissions).unwrap();
            others_can_write(&file.metadata().unwrap())
        };
        assert!(!with(0o600) && !with(0o644));
        assert!(with(0o602) && with(0o666));
    }

    #[test]
    fn names_that_could_break_a_passwd_line_are_not_taken() {
        assert!(is_plain("jane.doe-1"));
        for name in ["", "a:b", "a b", "-x", "a\nb", "é"] {
            assert!(!is_plain(name), "{name:?}");
        }
    }
}
