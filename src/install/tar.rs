//! Files -> a tar archive (POSIX ustar), the same bytes for the same files.
//! Pure.

const BLOCK: usize = 512;

/// An archive with one executable, for an image made of nothing else.
pub(super) fn of_program(name: &str, bytes: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(bytes.len() + 4 * BLOCK);
    out.extend(header(name, bytes.len())?);
    out.extend(bytes);
    let padding = bytes.len().next_multiple_of(BLOCK) - bytes.len();
    // Two empty blocks end the archive.
    out.resize(out.len() + padding + 2 * BLOCK, 0);
    Ok(out)
}

fn header(name: &str, size: usize) -> Result<[u8; BLOCK], String> {
    // Eleven octal digits.
    if name.len() > 100 || size >= 1 << 33 {
        return Err(format!("{name:?} does not fit in a tar archive"));
    }
    let mut block = [0; BLOCK];
    put(&mut block, 0, name.as_bytes());
    put(&mut block, 100, b"0000755\0");
    // User, group, time: root's, and none.
    put(&mut block, 108, b"0000000\0");
    put(&mut block, 116, b"0000000\0");
    put(&mut block, 124, format!("{size:011o}\0").as_bytes());
    put(&mut block, 136, b"00000000000\0");
    // The sum is made with blanks in its place.
    put(&mut block, 148, b"        ");
    put(&mut block, 156, b"0");
    put(&mut block, 257, b"ustar\x0000");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    put(&mut block, 148, format!("{sum:06o}\0 ").as_bytes());
    Ok(block)
}

fn put(block: &mut [u8; BLOCK], at: usize, field: &[u8]) {
    for (to, from) in block.iter_mut().skip(at).zip(field) {
        *to = *from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tar_itself_reads_the_archive() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.tar");
        let content = vec![7; 1000];
        std::fs::write(&file, of_program("umwelt", &content).unwrap()).unwrap();
        let mut tar = std::process::Command::new("tar");
        tar.current_dir(&dir).args(["-xvf"]).arg(&file);
        let output = tar.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(output.stdout, b"umwelt\n");
        assert_eq!(std::fs::read(dir.path().join("umwelt")).unwrap(), content);
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &dir.path().join("umwelt").metadata().unwrap().permissions(),
        );
        assert_eq!(mode & 0o700, 0o700);
    }

    #[test]
    fn archives_are_made_of_whole_blocks() {
        for size in [0, 1, 511, 512, 513] {
            let archive = of_program("x", &vec![1; size]).unwrap();
            assert_eq!(archive.len() % BLOCK, 0);
            assert!(archive.ends_with(&[0; 2 * BLOCK]));
        }
        assert!(of_program(&"x".repeat(101), b"").is_err());
    }
}
