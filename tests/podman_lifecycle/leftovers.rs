//! What an earlier life has left is in nobody's way; what is not ours stays.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::podman_common::sandbox::{PREFIX, Place};
use crate::podman_common::{Options, PATIENCE, host, wait_for};
use crate::run::{Run, send};
use crate::traces::{assert_gone, containers, processes};

fn place() -> Option<Place> {
    host::qualifies().then(|| Place::new(Options::default()))
}

/// A container of the sandbox's name that was never started; its id.
fn create(place: &Place, labels: &[String]) -> String {
    let name = format!("--name={}", place.name());
    let mut args = vec!["create", "--pull=never", "--network=none", &name];
    args.extend(labels.iter().map(String::as_str));
    args.extend(["umwelt:latest", "true"]);
    host::podman(&args).trim().to_owned()
}

fn our_labels(place: &Place) -> [String; 2] {
    [
        format!("--label=umwelt.prefix={PREFIX}"),
        format!("--label=umwelt.sid={}", place.sid()),
    ]
}

#[test]
fn everything_of_an_earlier_life_is_swept() {
    let Some(place) = place() else { return };
    let old = create(&place, &our_labels(&place));
    let lock = host::runtime_dir().join(format!("{}.lock", place.name()));
    std::fs::write(lock, "whatever").unwrap();
    std::fs::write(place.socket(), "stale").unwrap();
    let runtime = host::runtime_dir().join(place.name());
    std::fs::create_dir(&runtime).unwrap();
    std::fs::write(runtime.join("cid"), "0".repeat(64)).unwrap();
    std::fs::write(runtime.join("other"), "").unwrap();
    std::fs::create_dir_all(place.state().join("output")).unwrap();
    std::fs::write(place.state().join("output/1.txt"), "old").unwrap();
    for private in [place.path().join("state/umwelt"), place.state()] {
        std::process::Command::new("chmod")
            .args(["-R", "go-rwx"])
            .arg(private)
            .status()
            .unwrap();
    }
    let mut run = Run::ready(&place);
    assert_eq!(run.client().output("ls /run/umwelt/output"), "");
    let now = containers(&place);
    assert!(now.len() == 1 && !now[0].contains(&old), "{now:?}");
    run.stop();
    assert_gone(&place);
}

#[test]
fn container_without_our_labels_is_left_alone_and_named() {
    let Some(place) = place() else { return };
    let other = place.sid().chars().rev().collect::<String>();
    let labels = [
        format!("--label=umwelt.prefix={PREFIX}"),
        format!("--label=umwelt.sid={other}"),
    ];
    let id = create(&place, &labels);
    let mut run = Run::begin(&place);
    let status = run.wait_ended(PATIENCE);
    let left = containers(&place);
    host::podman(&["rm", "--force", &id]);
    assert_eq!(status.code(), Some(1));
    assert!(left.len() == 1 && left[0].contains(&id), "{left:?}");
    let log = run.log();
    assert!(log.contains(&place.name()), "{log}");
    assert!(log.contains("belongs to another container"), "{log}");
    assert!(log.contains("hint: "), "{log}");
    assert_gone(&place);
}

/// podman that is killed between making the storage of a container and
/// writing its own database leaves one that has no labels, and no listing.
#[test]
fn half_made_container_is_swept() {
    let Some(place) = place() else { return };
    let storage = storage_of_containers();
    let mut half_made = Vec::new();
    let end = Instant::now() + 3 * PATIENCE;
    while half_made.is_empty() {
        assert!(Instant::now() < end, "no container was left half made");
        let mut run = Run::begin(&place);
        wait_for("podman", PATIENCE, || {
            processes(&place, "podman run").first().copied()
        });
        // The name is in the storage's list from the first moment on, and the next step of
        // podman's comes soon: who is to be killed is known before.
        let mut podman = Vec::new();
        for look in 0u32.. {
            if look % 16 == 0 {
                assert!(Instant::now() < end, "{storage:?} has no {}", place.name());
                podman = processes(&place, "podman run");
            }
            if std::fs::read_to_string(&storage).is_ok_and(|list| list.contains(&place.name())) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        for pid in podman {
            send(pid, Signal::KILL);
        }
        run.kill();
        half_made = containers(&place);
        half_made.retain(|line| line.ends_with(" storage"));
    }
    let mut run = Run::ready(&place);
    run.stop();
    assert_gone(&place);
}

/// The storage's list of containers that are removed with the machine's end,
/// as rootless ones with `--rm` are.
fn storage_of_containers() -> std::path::PathBuf {
    let data = std::env::var_os("XDG_DATA_HOME")
        .map_or_else(|| host::home().join(".local/share"), Into::into);
    data.join("containers/storage/overlay-containers/volatile-containers.json")
}
