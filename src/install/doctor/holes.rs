//! Versions -> published holes that matter for a sandbox, with the version that
//! repaired each. Pure. What umwelt never asks of a program is left out: `kube
//! play`, `exec`, names by podman's own server; so are kernel holes behind
//! system calls and sockets that the seccomp profile refuses.

/// Who could use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// What runs in a sandbox.
    Command,
    /// Whoever made the image, or the recipe of one that is built here.
    Image,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hole {
    program: &'static str,
    from: [u64; 3],
    pub(super) fixed: [u64; 3],
    pub(super) names: &'static str,
    pub(super) by: By,
}

const fn hole(
    program: &'static str,
    from: [u64; 3],
    fixed: [u64; 3],
    names: &'static str,
    by: By,
) -> Hole {
    Hole {
        program,
        from,
        fixed,
        names,
        by,
    }
}

const RUNC_2025: &str = "CVE-2025-31133, CVE-2025-52565, CVE-2025-52881";

/// The newest version that repairs comes last for each.
const HOLES: [Hole; 16] = [
    hole("podman", [0, 0, 0], [4, 9, 4], "CVE-2024-1753", By::Image),
    hole("podman", [5, 0, 0], [5, 0, 1], "CVE-2024-1753", By::Image),
    hole(
        "podman",
        [0, 0, 0],
        [5, 2, 4],
        "CVE-2024-9407, CVE-2024-9341",
        By::Image,
    ),
    hole("podman", [0, 0, 0], [5, 2, 5], "CVE-2024-9675", By::Image),
    hole("podman", [0, 0, 0], [5, 3, 2], "CVE-2024-11218", By::Image),
    hole("crun", [0, 0, 0], [1, 28, 0], "CVE-2026-47766", By::Image),
    hole(
        "runc",
        [0, 0, 0],
        [1, 1, 5],
        "CVE-2023-27561, CVE-2023-28642",
        By::Image,
    ),
    hole("runc", [0, 0, 0], [1, 1, 12], "CVE-2024-21626", By::Command),
    hole("runc", [0, 0, 0], [1, 2, 8], RUNC_2025, By::Command),
    hole("runc", [1, 3, 0], [1, 3, 3], RUNC_2025, By::Command),
    hole("runc", [0, 0, 0], [1, 3, 6], "CVE-2026-41579", By::Image),
    hole("runc", [1, 4, 0], [1, 4, 3], "CVE-2026-41579", By::Image),
    hole(
        "Linux",
        [5, 8, 0],
        [5, 10, 102],
        "CVE-2022-0847",
        By::Command,
    ),
    hole(
        "Linux",
        [5, 11, 0],
        [5, 15, 25],
        "CVE-2022-0847",
        By::Command,
    ),
    hole(
        "Linux",
        [5, 16, 0],
        [5, 16, 11],
        "CVE-2022-0847",
        By::Command,
    ),
    hole("Linux", [6, 1, 0], [6, 1, 37], "CVE-2023-3269", By::Command),
];

pub(super) fn of(program: &str, found: [u64; 3]) -> Vec<Hole> {
    let is_open =
        |hole: &&Hole| hole.program == program && hole.from <= found && found < hole.fixed;
    HOLES.iter().filter(is_open).copied().collect()
}

impl Hole {
    /// Whether the text, a changelog, names all of them.
    pub(super) fn is_named_in(&self, text: &str) -> bool {
        self.names.split(", ").all(|name| text.contains(name))
    }
}

/// The first three numbers of a version.
pub(super) fn numbers(version: &str) -> Option<[u64; 3]> {
    let version = version.trim_start_matches('v');
    let mut parts = version.split(|c: char| !c.is_ascii_digit());
    let major = parts.next()?.parse().ok()?;
    let mut next = || parts.next().and_then(|part| part.parse().ok()).unwrap_or(0);
    Some([major, next(), next()])
}

/// The version of the kernel that a distribution has built its own from, as it
/// tells it: Debian in the build's description, Ubuntu in a file of its own. A
/// release such as `6.1.0-18-amd64` is a name, and says less.
pub(super) fn kernel(release: &str, build: &str, signature: &str) -> Option<[u64; 3]> {
    let after = |text: &str, word: &str| {
        let mut words = text
            .split_whitespace()
            .skip_while(|one| *one != word)
            .skip(1);
        words.next().and_then(numbers)
    };
    let ubuntu = signature.split_whitespace().nth(2).and_then(numbers);
    after(build, "Debian")
        .or(ubuntu)
        .or_else(|| numbers(release))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_three_numbers() {
        for (text, expected) in [
            ("5.4.2", Some([5, 4, 2])),
            ("v1.1.3", Some([1, 1, 3])),
            ("1.21", Some([1, 21, 0])),
            ("6.12.1-amd64", Some([6, 12, 1])),
            ("5.0.0-dev", Some([5, 0, 0])),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(numbers(text), expected, "{text}");
        }
    }

    #[test]
    fn kernels_are_of_the_version_that_their_distribution_tells() {
        let debian = "#1 SMP PREEMPT_DYNAMIC Debian 6.1.76-1 (2024-02-01)";
        let ubuntu = "Ubuntu 5.15.0-91.101-generic 5.15.131";
        for (release, build, signature, expected) in [
            ("6.1.0-18-amd64", debian, "", [6, 1, 76]),
            ("5.15.0-91-generic", "#101-Ubuntu SMP", ubuntu, [5, 15, 131]),
            ("6.9.7-arch1-1", "#1 SMP", "", [6, 9, 7]),
            ("5.14.0-427.el9", "#1 SMP", "", [5, 14, 0]),
        ] {
            assert_eq!(kernel(release, build, signature), Some(expected));
        }
        assert_eq!(kernel("", "", ""), None);
    }

    #[test]
    fn holes_end_where_they_were_repaired() {
        for (program, found, last) in [
            ("podman", [4, 3, 1], Some("CVE-2024-11218")),
            ("podman", [5, 4, 2], None),
            ("runc", [1, 1, 11], Some("CVE-2026-41579")),
            ("runc", [1, 3, 3], Some("CVE-2026-41579")),
            ("runc", [1, 3, 6], None),
            ("runc", [1, 4, 2], Some("CVE-2026-41579")),
            ("runc", [1, 4, 3], None),
            ("crun", [1, 28, 0], None),
            ("Linux", [5, 15, 25], None),
            ("Linux", [5, 16, 3], Some("CVE-2022-0847")),
            ("Linux", [6, 1, 36], Some("CVE-2023-3269")),
            ("Linux", [6, 1, 37], None),
        ] {
            let names = of(program, found).last().map(|hole| hole.names);
            assert_eq!(names, last, "{program} {found:?}");
        }
        let of_commands = |version| {
            of("runc", version)
                .iter()
                .filter(|hole| hole.by == By::Command)
                .count()
        };
        assert_eq!(
            (
                of_commands([1, 1, 11]),
                of_commands([1, 1, 12]),
                of_commands([1, 2, 8])
            ),
            (2, 1, 0)
        );
    }

    #[test]
    fn a_changelog_has_to_name_all_of_them() {
        let hole = of("podman", [5, 2, 3])[0];
        assert!(hole.is_named_in("fix CVE-2024-9407\n* CVE-2024-9341"));
        assert!(!hole.is_named_in("fix CVE-2024-9407"));
    }
}
