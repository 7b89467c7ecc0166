//! `umwelt-install image`: the recipe that came with the program -> the image
//! that commands run in.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use crate::cli::args::{Args, Operands, Subcommand};
use crate::config::Config;
use crate::digest::sha256;
use crate::error::Error;
use crate::install::layout::Layout;
use crate::install::record::{Record, SandboxImage};
use crate::install::setup::Held;
use crate::install::{InstallError, call, files, path_of, refuse_root, say};
use crate::podman;

pub(super) const SUBCOMMAND: Subcommand = Subcommand {
    name: "image",
    help: "\
Usage: umwelt-install image [OPTION…]

Builds umwelt:latest, the image that commands run in: with podman build, or
from Debian packages with mmdebstrap where that does not work, for example
because no container registry can be reached. This takes some minutes. With
--from nothing is built.

Options:
      --with-build     put in compilers, and what they need
      --packages FILE  put in further Debian packages, named one a line
      --from-packages  do not try podman build
      --from FILE      import a root file system that was packed with tar
  -h, --help           print this help and exit
  -V, --version        print the version and exit
",
    flags: &["with-build", "from-packages"],
    values: &["packages", "from"],
    operands: Operands::None,
    run,
};

/// Built under this name only: another one in the configuration is the user's.
pub(super) const IMAGE: &str = "umwelt:latest";
/// Tells by which recipe an image was made.
pub(super) const RECIPE_LABEL: &str = "umwelt.recipe";

const SCRIPT: &str = "mmdebstrap.sh";
const RECIPE: [(&str, &str); 4] = [
    (
        "Containerfile",
        include_str!("../../containerfiles/sandbox/Containerfile"),
    ),
    (
        SCRIPT,
        include_str!("../../containerfiles/sandbox/mmdebstrap.sh"),
    ),
    (
        "packages.txt",
        include_str!("../../containerfiles/sandbox/packages.txt"),
    ),
    (
        "packages-build.txt",
        include_str!("../../containerfiles/sandbox/packages-build.txt"),
    ),
];

/// What a build may need of the environment to reach the outside.
const PROXY_VARIABLES: [&str; 6] = [
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
];

/// What is put in.
#[derive(Debug, Default)]
struct Wish {
    with_build: bool,
    packages: Vec<String>,
    from_packages: bool,
    /// A root file system that is there already, in place of all that.
    from: Option<PathBuf>,
}

fn run(args: Args) -> Result<ExitCode, Error> {
    refuse_root()?;
    let layout = Layout::load()?;
    let home = &layout.dirs.home;
    let packages = match path_of(&args, "packages", home)? {
        Some(path) => read_packages(&path)?,
        None => Vec::new(),
    };
    let wish = Wish {
        with_build: args.has("with-build"),
        packages,
        from_packages: args.has("from-packages"),
        from: path_of(&args, "from", home)?,
    };
    let builds = wish.with_build || wish.from_packages || !wish.packages.is_empty();
    if builds && wish.from.is_some() {
        let message = "--from imports what is there, and goes with no other option";
        return Err(Error::usage(message.to_owned()));
    }
    let mut held = Held::take(layout)?;
    build(&held.layout, &mut held.record, &wish)?;
    held.save()?;
    Ok(ExitCode::SUCCESS)
}

/// The digest of the recipe that came with this program.
pub(super) fn recipe_sha256() -> String {
    let mut text = String::new();
    for (name, content) in RECIPE {
        text.push_str(&format!("{name} {}\n{content}", content.len()));
    }
    sha256(text.as_bytes())
}

/// How the image that the configuration names stands to the recipe.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Missing,
    Current,
    Old,
    /// Made by other means, or another one is configured.
    Foreign,
}

/// The name that is configured, and what podman has under it.
pub(super) fn standing(layout: &Layout) -> Result<(String, Standing), Error> {
    let name = Config::load(&layout.dirs)?.image;
    let found = call::find_image(&name, RECIPE_LABEL)?;
    let standing = match found {
        None => Standing::Missing,
        Some(found) if found.label == recipe_sha256() => Standing::Current,
        Some(found) if found.label.is_empty() || !is_ours(&name) => Standing::Foreign,
        Some(_) => Standing::Old,
    };
    Ok((name, standing))
}

pub(super) fn is_ours(name: &str) -> bool {
    name.strip_prefix("localhost/").unwrap_or(name) == IMAGE
}

/// At an installation: built, or imported, where there is none.
pub(super) fn ensure(
    layout: &Layout,
    record: &mut Record,
    from: Option<PathBuf>,
) -> Result<(), Error> {
    let (name, standing) = standing(layout)?;
    match standing {
        Standing::Current => say("image", &format!("is so already: {name}")),
        Standing::Old => say(
            "image",
            &format!("{name} is older than its recipe; renew it with: umwelt-install image"),
        ),
        Standing::Foreign => say("image", &format!("{name} was made by other means: kept")),
        Standing::Missing if is_ours(&name) => {
            let wish = Wish {
                from,
                ..Wish::default()
            };
            build(layout, record, &wish)?;
        }
        Standing::Missing => say(
            "image",
            &format!("{name}, which the configuration names, is missing; it is yours to make"),
        ),
    }
    Ok(())
}

fn read_packages(path: &Path) -> Result<Vec<String>, InstallError> {
    let gone = || InstallError::file("read", path, std::io::ErrorKind::NotFound.into());
    let bytes = files::read(path)?.ok_or_else(gone)?;
    parse_packages(&String::from_utf8_lossy(&bytes)).map_err(|word| InstallError::Package {
        path: path.to_owned(),
        word,
    })
}

/// One name a line, with comments. An error is a word that is no name: it
/// becomes part of a command.
fn parse_packages(text: &str) -> Result<Vec<String>, String> {
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim());
    let words = lines.filter(|line| !line.is_empty());
    words
        .map(|word| match is_package(word) {
            true => Ok(word.to_owned()),
            false => Err(word.to_owned()),
        })
        .collect()
}

/// As Debian's policy has it (5.6.1).
fn is_package(word: &str) -> bool {
    let of_names = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    word.len() >= 2
        && word.bytes().next().is_some_and(of_names)
        && word
            .bytes()
            .all(|byte| of_names(byte) || b"+-.".contains(&byte))
}

/// A directory that goes when the build is over, however it ends.
#[derive(Debug)]
struct Workshop(PathBuf);

impl Workshop {
    fn open(layout: &Layout) -> Result<Workshop, InstallError> {
        let path = layout.dirs.data.join("image-recipe");
        let failed = |error| InstallError::file("clear", &path, error);
        match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed(error));
            }
            _ => {}
        }
        files::make_dir(&path, 0o700)?;
        let workshop = Workshop(path);
        for (name, content) in RECIPE {
            files::replace(&workshop.0.join(name), content.as_bytes(), 0o644)?;
        }
        Ok(workshop)
    }
}

impl Drop for Workshop {
    fn drop(&mut self) {
        // What is left is cleared by the next build.
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

fn build(layout: &Layout, record: &mut Record, wish: &Wish) -> Result<(), InstallError> {
    let before = call::find_image(IMAGE, RECIPE_LABEL)?;
    let (recipe_sha256, done) = match &wish.from {
        Some(archive) => {
            import_given(archive)?;
            // By which recipe it was made, if by any, is not known.
            (String::new(), "imported")
        }
        None => {
            make(layout, wish)?;
            (recipe_sha256(), "built")
        }
    };
    let found = call::find_image(IMAGE, RECIPE_LABEL)?;
    let Some(found) = found.filter(|found| found.label == recipe_sha256) else {
        let problem = format!("afterwards {IMAGE} is not what was built");
        return Err(InstallError::Image(vec![problem]));
    };
    if let Some(before) = before.filter(|before| before.id != found.id) {
        // It stays while a sandbox uses it.
        call::remove_image(&before.id)?;
    }
    say("image", &format!("{done}: {IMAGE}"));
    record.sandbox_image = Some(SandboxImage {
        name: IMAGE.to_owned(),
        id: found.id,
        recipe_sha256,
        with_build: wish.with_build,
        packages: wish.packages.clone(),
    });
    Ok(())
}

fn make(layout: &Layout, wish: &Wish) -> Result<(), InstallError> {
    let workshop = Workshop::open(layout)?;
    let mut problems = Vec::new();
    let is_built = (!wish.from_packages && tried(by_podman(&workshop, wish), &mut problems))
        || tried(from_packages(&workshop, wish), &mut problems);
    match is_built {
        true => Ok(()),
        false => Err(InstallError::Image(problems)),
    }
}

/// A root file system of the user's, which was made on another host perhaps.
fn import_given(archive: &Path) -> Result<(), InstallError> {
    let failed = |error| InstallError::file("read", archive, error);
    // podman is not to take a name for an address, nor wait for a pipe.
    let path = archive.canonicalize().map_err(failed)?;
    if !path.is_file() {
        return Err(failed(std::io::Error::other("it is no regular file")));
    }
    say("image", "importing; this takes a while");
    import(&path, &[])
}

fn tried(result: Result<(), String>, problems: &mut Vec<String>) -> bool {
    match result {
        Ok(()) => true,
        Err(problem) => {
            say("image", &problem);
            problems.push(problem);
            false
        }
    }
}

fn label() -> String {
    format!("{RECIPE_LABEL}={}", recipe_sha256())
}

fn by_podman(workshop: &Workshop, wish: &Wish) -> Result<(), String> {
    let mut args: Vec<OsString> = ["build", "--tag", IMAGE, "--label"].map(Into::into).into();
    args.push(label().into());
    if wish.with_build {
        args.extend(["--build-arg", "WITH_BUILD=1"].map(Into::into));
    }
    if !wish.packages.is_empty() {
        let packages = format!("EXTRA_PACKAGES={}", wish.packages.join(" "));
        args.extend(["--build-arg".into(), packages.into()]);
    }
    args.push(workshop.0.clone().into());
    say(
        "image",
        "building with podman build; this takes some minutes",
    );
    let mut command = podman::command(&podman::trusted_search_path(), &args);
    for name in PROXY_VARIABLES {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    show(command, "podman build")
}

fn from_packages(workshop: &Workshop, wish: &Wish) -> Result<(), String> {
    if call::find("mmdebstrap").is_none() {
        return Err("mmdebstrap, which makes it from Debian packages, is not installed".to_owned());
    }
    let archive = workshop.0.join("image.tar");
    let mut command = Command::new("/bin/bash");
    command.arg(workshop.0.join(SCRIPT)).arg(&archive);
    if wish.with_build {
        command.arg("--with-build");
    }
    command
        .args(&wish.packages)
        .env("PATH", call::search_path())
        .current_dir("/");
    say(
        "image",
        "building from Debian packages; this takes some minutes",
    );
    show(command, "mmdebstrap")?;
    let label = format!("LABEL {}", label());
    import(&archive, &[&label]).map_err(|error| error.to_string())
}

fn import(archive: &Path, changes: &[&str]) -> Result<(), InstallError> {
    let mut args: Vec<&OsStr> = ["import", "--quiet"].map(OsStr::new).into();
    for change in ["ENV LANG=C.UTF-8", "CMD [\"bash\"]"].iter().chain(changes) {
        args.extend([OsStr::new("--change"), OsStr::new(change)]);
    }
    args.extend([archive.as_os_str(), OsStr::new(IMAGE)]);
    call::podman_done(&args, None, call::SLOW).map(drop)
}

/// Runs a program whose output a person wants to see; ours stays apart.
fn show(mut command: Command, name: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{name} could not be run: {error}");
    let stderr = std::io::stderr().as_fd().try_clone_to_owned();
    command
        .stdin(Stdio::null())
        .stdout(Stdio::from(stderr.map_err(failed)?));
    let status = command.status().map_err(failed)?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{name} failed: {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_plain_names() {
        let text = "# mine\nnodejs  # for scripts\n\nlibstdc++6\n";
        assert_eq!(parse_packages(text).unwrap(), ["nodejs", "libstdc++6"]);
        for bad in ["-o", "--help", "a b", "x;y", "$(x)", "Upper", "a", "/etc"] {
            assert_eq!(parse_packages(bad).unwrap_err(), bad);
        }
    }

    #[test]
    fn the_recipe_is_what_lies_in_the_tree() {
        for (name, content) in RECIPE {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("containerfiles/sandbox");
            assert_eq!(std::fs::read_to_string(path.join(name)).unwrap(), content);
        }
        assert_eq!(recipe_sha256().len(), 64);
    }
}
