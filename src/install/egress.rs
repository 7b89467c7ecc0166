//! What a sandbox with a network needs: an authority, the roots that are
//! trusted, and the image of the gateway.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::digest::sha256;
use crate::gateway::tls::authority::{self, Authority, CertificateError};
use crate::gateway::tls::leaf::Leaves;
use crate::install::layout::Layout;
use crate::install::record::{AuthorityRecord, Image, Record, now};
use crate::install::{InstallError, call, files, say, tar};

pub(super) const GATEWAY_IMAGE: &str = "localhost/umwelt-egress-gw:latest";
/// Tells which program is in the image.
pub(super) const PROGRAM_LABEL: &str = "umwelt.program";

pub(super) const LEFT_OUT: &str = "left out, as --no-egress asked for";
pub(super) const PUT_IN: &str = "umwelt-install install --egress";

/// An authority is made anew this long before it ends.
const RENEW_S: u64 = 30 * 24 * 3600;

/// Where distributions keep all their roots in one file: Debian, Arch and
/// Gentoo; Fedora and RHEL, twice; openSUSE, twice; Alpine.
const HOST_ROOTS: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/var/lib/ca-certificates/ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

pub(super) fn install(
    layout: &Layout,
    record: &mut Record,
    program_sha256: &str,
) -> Result<(), InstallError> {
    if record.without_egress {
        say("egress", &format!("{LEFT_OUT}; put it in with: {PUT_IN}"));
        return Ok(());
    }
    record.add_created(files::make_dir(&layout.egress, 0o700)?);
    close(&layout.egress)?;
    match authority_problem(layout, record) {
        None => say("ca", &format!("is so already, {}", good_until(record))),
        Some(why) => {
            make_authority(layout, record)?;
            say("ca", &format!("made ({why}), {}", good_until(record)));
        }
    }
    match write_bundle(layout)? {
        true => say("bundle", &format!("written: {}", layout.bundle().display())),
        false => say("bundle", "is so already"),
    }
    find_nft(record);
    install_image(record, program_sha256)
}

/// Closes a directory of ours to others.
pub(super) fn close(dir: &Path) -> Result<(), InstallError> {
    use std::os::unix::fs::PermissionsExt;
    if files::mode_of(dir) == Some(0o700) {
        return Ok(());
    }
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700))
        .map_err(|error| InstallError::file("close", dir, error))
}

/// Why the authority that is there cannot be used for much longer.
pub(super) fn authority_problem(layout: &Layout, record: &Record) -> Option<String> {
    let (certificate, key) = (layout.authority_certificate(), layout.authority_key());
    let bytes = match files::read(&certificate) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Some("there was none".to_owned()),
        Err(error) => return Some(error.to_string()),
    };
    let Some(known) = &record.authority else {
        return Some("nothing tells when it ends".to_owned());
    };
    if known.sha256 != sha256(&bytes) {
        return Some("it is not the one that was made".to_owned());
    }
    if files::mode_of(&key).is_some_and(|mode| mode != 0o600) {
        return Some("others could read its key".to_owned());
    }
    if known.expires < now() + RENEW_S {
        return Some(format!("it ends on {}", date(known.expires)));
    }
    check_authority(&certificate, &key)
        .err()
        .map(|error| error.to_string())
}

fn check_authority(certificate: &Path, key: &Path) -> Result<(), CertificateError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Leaves::new(provider, Authority::load(certificate, key)?)?.check(certificate)
}

/// The key comes first: a certificate without its key is seen to be useless.
pub(super) fn make_authority(layout: &Layout, record: &mut Record) -> Result<(), InstallError> {
    let new = authority::create().map_err(InstallError::Authority)?;
    files::replace(&layout.authority_key(), new.key.as_bytes(), 0o600)?;
    let certificate = new.certificate.as_bytes();
    files::replace(&layout.authority_certificate(), certificate, 0o644)?;
    record.authority = Some(AuthorityRecord {
        sha256: sha256(certificate),
        expires: seconds(new.expires),
    });
    record.save(&layout.record)
}

fn seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

pub(super) fn good_until(record: &Record) -> String {
    let ends = record.authority.as_ref().map_or(0, |known| known.expires);
    format!("good until {}", date(ends))
}

/// Year, month and day, in UTC.
fn date(seconds: u64) -> String {
    // Counted from 1 March of the year 0, so that the leap day comes last.
    let days = seconds / 86400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = match month {
        10.. => (month - 9, 1),
        _ => (month + 3, 0),
    };
    format!("{:04}-{month:02}-{day:02}", era * 400 + year + carry)
}

/// Whether roots or bundle had to be written.
pub(super) fn write_bundle(layout: &Layout) -> Result<bool, InstallError> {
    let (roots, bundle) = bundle_texts(layout, &HOST_ROOTS)?;
    let mut written = false;
    for (path, bytes) in [(layout.roots(), roots), (layout.bundle(), bundle)] {
        if files::read(&path)?.as_ref() != Some(&bytes) || files::mode_of(&path) != Some(0o644) {
            files::replace(&path, &bytes, 0o644)?;
            written = true;
        }
    }
    Ok(written)
}

/// Why the bundle does not hold what it should; nothing where it does.
pub(super) fn bundle_problem(layout: &Layout) -> Result<Option<String>, InstallError> {
    let (roots, bundle) = bundle_texts(layout, &HOST_ROOTS)?;
    for (path, bytes) in [(layout.roots(), roots), (layout.bundle(), bundle)] {
        match files::read(&path)? {
            None => return Ok(Some(format!("{} is missing", path.display()))),
            Some(there) if there != bytes => {
                return Ok(Some("the roots of this host have changed".to_owned()));
            }
            Some(_) => {}
        }
    }
    Ok(None)
}

/// The roots of the host, and the same with our authority.
fn bundle_texts(layout: &Layout, places: &[&str]) -> Result<(Vec<u8>, Vec<u8>), InstallError> {
    let mut roots = host_roots(places)?;
    if !roots.ends_with(b"\n") {
        roots.push(b'\n');
    }
    let certificate = layout.authority_certificate();
    let ours = files::read(&certificate)?.unwrap_or_default();
    let bundle = [roots.as_slice(), ours.as_slice()].concat();
    Ok((roots, bundle))
}

fn host_roots(places: &[&str]) -> Result<Vec<u8>, InstallError> {
    const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";
    for place in places {
        let bytes = files::read(Path::new(place))?.unwrap_or_default();
        if bytes.windows(BEGIN.len()).any(|window| window == BEGIN) {
            return Ok(bytes);
        }
    }
    Err(InstallError::NoRoots)
}

/// Its absence is no failure of the installation: only a sandbox with a network
/// needs it.
fn find_nft(record: &mut Record) {
    record.nft = call::find("nft");
    match &record.nft {
        Some(nft) => say("nft", &format!("found: {}", nft.display())),
        None => say(
            "nft",
            "was not found; sandboxes with a network need it: install nftables, then run this again",
        ),
    }
}

/// The image is made of the program alone: no registry is asked.
fn install_image(record: &mut Record, program_sha256: &str) -> Result<(), InstallError> {
    let before = call::find_image(GATEWAY_IMAGE, PROGRAM_LABEL)?;
    if let Some(found) = &before
        && found.label == program_sha256
    {
        record.gateway_image = Some(gateway_image(&found.id, program_sha256));
        say("gateway", &format!("is so already: {GATEWAY_IMAGE}"));
        return Ok(());
    }
    let program = super::program::running()?;
    let archive = tar::of_program("umwelt", &program).map_err(InstallError::Program)?;
    let label = format!("LABEL {PROGRAM_LABEL}={program_sha256}");
    let args = [
        "import",
        "--quiet",
        "--change",
        "ENTRYPOINT [\"/umwelt\", \"gateway\"]",
        "--change",
        &label,
        "-",
        GATEWAY_IMAGE,
    ];
    call::podman_done(&args, Some(&archive), call::SLOW)?;
    let found = call::find_image(GATEWAY_IMAGE, PROGRAM_LABEL)?;
    let Some(found) = found.filter(|found| found.label == program_sha256) else {
        return Err(InstallError::Podman {
            call: "podman import".to_owned(),
            problem: format!("afterwards {GATEWAY_IMAGE} is not what was imported"),
        });
    };
    record.gateway_image = Some(gateway_image(&found.id, program_sha256));
    // One that a running gateway uses stays until then.
    if let Some(before) = before.filter(|before| before.id != found.id) {
        call::remove_image(&before.id)?;
    }
    say("gateway", &format!("imported: {GATEWAY_IMAGE}"));
    Ok(())
}

fn gateway_image(id: &str, program_sha256: &str) -> Image {
    Image {
        name: GATEWAY_IMAGE.to_owned(),
        id: id.to_owned(),
        program_sha256: program_sha256.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dirs::Dirs;

    fn layout(base: &Path) -> Layout {
        let layout = Layout::new(Dirs {
            home: base.to_owned(),
            config: base.join("c"),
            data: base.join("d"),
            state: base.join("s"),
            runtime: base.join("r"),
        });
        files::make_dir(&layout.egress, 0o700).unwrap();
        layout
    }

    #[test]
    fn an_authority_is_found_good_until_something_about_it_changes() {
        let dir = tempfile::tempdir().unwrap();
        let layout = layout(dir.path());
        let mut record = Record::empty();
        assert_eq!(
            authority_problem(&layout, &record).unwrap(),
            "there was none"
        );
        make_authority(&layout, &mut record).unwrap();
        assert_eq!(authority_problem(&layout, &record), None);
        assert_eq!(files::mode_of(&layout.authority_key()), Some(0o600));

        let mut other = record.clone();
        other.authority.as_mut().unwrap().expires = now() + RENEW_S - 10;
        assert!(
            authority_problem(&layout, &other)
                .unwrap()
                .starts_with("it ends on ")
        );
        other.authority = None;
        assert!(authority_problem(&layout, &other).is_some());

        let key = std::fs::read(layout.authority_key()).unwrap();
        files::replace(&layout.authority_key(), &key, 0o644).unwrap();
        assert!(authority_problem(&layout, &record).unwrap().contains("key"));
        let elsewhere = authority::create().unwrap().key;
        files::replace(&layout.authority_key(), elsewhere.as_bytes(), 0o600).unwrap();
        assert!(
            authority_problem(&layout, &record)
                .unwrap()
                .contains("not that of")
        );
        files::replace(&layout.authority_certificate(), b"x", 0o644).unwrap();
        assert!(
            authority_problem(&layout, &record)
                .unwrap()
                .contains("not the one")
        );
    }

    #[test]
    fn the_first_place_with_certificates_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(path("empty"), "# none\n").unwrap();
        std::fs::write(path("full"), "# a\n-----BEGIN CERTIFICATE-----\nx").unwrap();
        let (gone, empty, full) = (path("gone"), path("empty"), path("full"));
        assert!(matches!(
            host_roots(&[&gone, &empty]),
            Err(InstallError::NoRoots)
        ));
        assert!(host_roots(&[&gone, &empty, &full]).is_ok());
        let layout = layout(dir.path());
        std::fs::write(layout.authority_certificate(), "ours\n").unwrap();
        let (roots, bundle) = bundle_texts(&layout, &[&full]).unwrap();
        assert!(roots.ends_with(b"x\n") && bundle.ends_with(b"x\nours\n"));
    }

    #[test]
    fn days_are_told() {
        for (seconds, shown) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (1_709_251_199, "2024-02-29"),
            (1_735_689_600, "2025-01-01"),
            (4_107_542_400, "2100-03-01"),
        ] {
            assert_eq!(date(seconds), shown);
        }
    }
}
