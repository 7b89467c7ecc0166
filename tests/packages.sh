#!/bin/bash
# What scripts/release makes of a program: the same bytes each time, whole, and with manual pages
# that man(1) shows without a complaint.
#
# usage: tests/packages.sh BINARY OUTPUT
# shellcheck disable=SC2317  # functions are called by check
set -euo pipefail

repo=$(dirname "$(dirname "$(readlink -f "$0")")")
# shellcheck source=tests/check.bash
. "$repo/tests/check.bash"
binary=$1
output=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
names=(umwelt-mcp umwelt-run umwelt-ctl umwelt-nft-hook umwelt-install umwelt-init umwelt-gateway)

# Prints nothing, and does not fail.
silent() {
    local said status=0
    said=$("$@" 2>&1 >/dev/null) || status=$?
    [[ $status == 0 && -z $said ]] || { echo "$*: $said"; return 1; }
}

# The pages have no date: they are committed, and the same for the same version.
lint() {
    ! mandoc -T lint -W warning "$1" | grep -v 'WARNING: missing date, using "": TH$'
}

lacks() { ! grep -nE "$1" "${@:2}"; }

check 'it is packed' "$repo/scripts/release" --binary "$binary" --output "$output"
# Another folder, umask and time of day make no difference.
umask 077
check 'it is packed again' env TMPDIR="$work" "$repo/scripts/release" --binary "$binary" --output "$work/again"
umask 022
((failed == 0)) || exit 1
check 'made again, all bytes are the same' diff -r "$output" "$work/again"
check 'the checksums are right' env -C "$output" sha256sum --check --strict SHA256SUMS
check 'three files are made' test "$(find "$output" -type f | wc -l)" = 3

archive=$(echo "$output"/umwelt-*-linux.tar.xz)
package=$(echo "$output"/umwelt_*.deb)
tar -C "$work" -xJf "$archive"
top=$work/$(basename "$archive" .tar.xz)
check 'the archive has one folder' test "$(tar -tJf "$archive" | cut -d/ -f1 | sort -u)" = "$(basename "$top")"
tar -tvJf "$archive" --numeric-owner >"$work/listing"
check "all in it is root's, and only root can change it" lacks '^.{11}[1-9]|^.{5}w|^.{8}w' "$work/listing"
for file in LICENSE README.md INSTALL NOTICES containerfiles/sandbox/Containerfile share/umwelt.toml \
    share/systemd/umwelt-run@.service share/completions/umwelt.bash docs/security.md; do
    check "the archive has $file" test -s "$top/$file"
done
check 'the program in it is the one that was given' cmp "$binary" "$top/umwelt"
check 'it tells how to install in five lines' test "$(wc -l <"$top/INSTALL")" = 5

dpkg-deb -x "$package" "$work/root"
dpkg-deb -e "$package" "$work/control"
check 'the checksums in the package are right' env -C "$work/root" md5sum --check --quiet "$work/control/md5sums"
check 'the package puts all into /usr' test "$(ls "$work/root")" = usr
for name in "${names[@]}"; do
    check "$name is a link to the program" cmp "$binary" "$work/root/usr/bin/$name"
    check "$name has a manual page" gzip -t "$work/root/usr/share/man/man1/$name.1.gz"
    # shellcheck disable=SC2016
    check "$name is completed in bash" bash -c '. "$1" && complete -p "$2"' bash \
        "$work/root/usr/share/bash-completion/completions/$name" "$name"
    check "$name is completed in fish" grep -q "^complete -c $name " \
        "$work/root/usr/share/fish/vendor_completions.d/$name.fish"
done
check 'the configuration has a manual page' gzip -t "$work/root/usr/share/man/man5/umwelt.toml.5.gz"
check 'the package says what it needs' grep -q '^Depends: podman (>= 4.3), .*passt | slirp4netns$' "$work/control/control"
check 'its unit starts the program of the package' grep -q \
    '^ExecStart=:@/usr/lib/umwelt/umwelt umwelt-run --workspace %f$' \
    "$work/root/usr/lib/systemd/user/umwelt-run@.service"

for page in "$top"/share/man/man?/*; do
    name=$(basename "${page%.?}")
    check "man shows $name without a warning" silent env LC_ALL=C.UTF-8 man --warnings -E UTF-8 -l -Tutf8 -Z "$page"
    check "mandoc has nothing against $name" lint "$page"
    LC_ALL=C.UTF-8 MANWIDTH=100 man -l "$page" | col -bx >"$work/$name.txt"
    check "no mark of Markdown is left in $name" lacks '\*\*|^ *:   |^#|`' "$work/$name.txt"
    check "$name is there in a list of pages" grep -q "^ *$name - " "$work/$name.txt"
done
check 'options can be copied from a page' grep -qF -- '--prefix-bin DIR' "$work/umwelt-install.txt"
check 'an example stays as it is' grep -qxF -- \
    '           umwelt-ctl exec . -- cat /tmp/result.bin > result.bin' "$work/umwelt-ctl.txt"

printf '%% X(1) umwelt | User Commands\n\n# NAME\n\n| a | table |\n' >"$work/bad.md"
# shellcheck disable=SC2016
check 'a page with what is not known is refused' bash -c '! python3 "$1" "$2" 1' bash \
    "$repo/scripts/roff.py" "$work/bad.md"

exit "$failed"
