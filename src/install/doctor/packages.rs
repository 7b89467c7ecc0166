//! What is missing -> the command that installs it, with the names that the
//! packages have on this distribution, and what it has repaired in a package.

use std::process::Command;

use crate::install::call;

/// Families that share a package manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    Debian,
    Fedora,
    Suse,
    Arch,
    Other,
}

/// What packages are needed for, by the name of most distributions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Package {
    Podman,
    Crun,
    Netavark,
    /// What podman 4 and its netavark call for a network.
    NetworkTools,
    Nftables,
    /// `newuidmap` and `newgidmap`.
    Uidmap,
    /// The default seccomp profile of podman.
    Seccomp,
}

impl Family {
    /// Of this host, by os-release(5).
    pub(super) fn of_host() -> Family {
        let text = std::fs::read_to_string("/etc/os-release")
            .or_else(|_| std::fs::read_to_string("/usr/lib/os-release"));
        Family::from_os_release(&text.unwrap_or_default())
    }

    pub(super) fn from_os_release(text: &str) -> Family {
        let value = |key: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once('='));
            let (_, value) = lines.find(|(name, _)| *name == key)?;
            Some(value.trim_matches(['"', '\'']).to_owned())
        };
        let id = value("ID").unwrap_or_default();
        let like = value("ID_LIKE").unwrap_or_default();
        let known = std::iter::once(id.as_str()).chain(like.split(' '));
        let mut families = known.filter_map(|word| match word {
            "debian" | "ubuntu" => Some(Family::Debian),
            "fedora" | "rhel" | "centos" => Some(Family::Fedora),
            "suse" | "opensuse" | "opensuse-tumbleweed" | "opensuse-leap" | "sles" => {
                Some(Family::Suse)
            }
            "arch" => Some(Family::Arch),
            _ => None,
        });
        families.next().unwrap_or(Family::Other)
    }

    fn names(self, package: Package) -> &'static str {
        match (package, self) {
            (Package::Podman, _) => "podman",
            (Package::Crun, _) => "crun",
            (Package::Netavark, _) => "netavark aardvark-dns",
            (Package::NetworkTools, _) => "slirp4netns iptables",
            (Package::Nftables, _) => "nftables",
            (Package::Uidmap, Family::Fedora) => "shadow-utils",
            (Package::Uidmap, Family::Suse | Family::Arch) => "shadow",
            (Package::Uidmap, _) => "uidmap",
            (Package::Seccomp, Family::Debian) => "golang-github-containers-common",
            (Package::Seccomp, Family::Suse) => "libcontainers-common",
            (Package::Seccomp, _) => "containers-common",
        }
    }

    /// Of an installed package: what the distribution has repaired in it.
    pub(super) fn changelog(self, package: &str) -> Option<String> {
        let (program, args) = match self {
            Family::Debian => {
                let file = format!("/usr/share/doc/{package}/changelog.Debian.gz");
                ("gzip", vec!["-dc".to_owned(), file])
            }
            Family::Fedora | Family::Suse => {
                let args = ["-q", "--changelog", package];
                ("rpm", args.map(str::to_owned).into())
            }
            Family::Arch | Family::Other => return None,
        };
        let mut command = Command::new(call::find(program)?);
        command.args(args);
        let said = call::run(command, None, call::QUICK).ok()?;
        said.status.success().then(|| said.text().into_owned())
    }

    /// The command, where it is known.
    pub(super) fn install(self, package: Package) -> Result<String, String> {
        let names = self.names(package);
        match self {
            Family::Debian => Ok(format!("sudo apt-get install {names}")),
            Family::Fedora => Ok(format!("sudo dnf install {names}")),
            Family::Suse => Ok(format!("sudo zypper install {names}")),
            Family::Arch => Ok(format!("sudo pacman -S {names}")),
            Family::Other => Err(format!("install {names}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_found_by_name_or_by_likeness() {
        for (text, family) in [
            ("ID=debian\n", Family::Debian),
            (
                "NAME=x\nID=linuxmint\nID_LIKE=\"ubuntu debian\"\n",
                Family::Debian,
            ),
            (
                "ID=\"opensuse-tumbleweed\"\nID_LIKE=\"opensuse suse\"\n",
                Family::Suse,
            ),
            (
                "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n",
                Family::Fedora,
            ),
            ("ID=arch\n", Family::Arch),
            ("ID=nixos\n", Family::Other),
            ("", Family::Other),
        ] {
            assert_eq!(Family::from_os_release(text), family, "{text}");
        }
    }

    #[test]
    fn names_are_those_of_the_family() {
        let uidmap = |family: Family| family.install(Package::Uidmap);
        assert_eq!(
            uidmap(Family::Debian).unwrap(),
            "sudo apt-get install uidmap"
        );
        assert_eq!(
            uidmap(Family::Fedora).unwrap(),
            "sudo dnf install shadow-utils"
        );
        assert_eq!(uidmap(Family::Other).unwrap_err(), "install uidmap");
        let suse = Family::Suse.install(Package::Seccomp).unwrap();
        assert_eq!(suse, "sudo zypper install libcontainers-common");
    }
}
