//! The name of the user, without libc's name service: a static binary cannot
//! load its modules.

/// The login name of `uid`, from /etc/passwd, else from `$USER`, else `user`.
/// Only plain names are taken: it becomes a line of the sandbox's /etc/passwd.
pub(crate) fn name(uid: u32) -> String {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    find(&passwd, uid)
        .or_else(|| std::env::var("USER").ok())
        .filter(|name| is_plain(name))
        .unwrap_or_else(|| "user".to_owned())
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
    fn names_that_could_break_a_passwd_line_are_not_taken() {
        assert!(is_plain("jane.doe-1"));
        for name in ["", "a:b", "a b", "-x", "a\nb", "é"] {
            assert!(!is_plain(name), "{name:?}");
        }
    }
}
