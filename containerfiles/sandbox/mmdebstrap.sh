#!/bin/bash
# Builds the sandbox's root file system from Debian packages alone, for hosts that reach no
# container registry:
#
#   mmdebstrap.sh OUT.tar [--with-build] [EXTRA-PACKAGE...]
#   podman import --change 'ENV LANG=C.UTF-8' --change 'CMD ["bash"]' OUT.tar umwelt:latest
#
# Works as root, and as an ordinary user with subordinate ids (mmdebstrap chooses its mode).
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")

usage() {
    echo "usage: ${0##*/} OUT.tar [--with-build] [EXTRA-PACKAGE...]" >&2
    exit 2
}

[[ $# -ge 1 && $1 != -* ]] || usage
out=$1
shift

lists=("$here/packages.txt")
extra=()
for word in "$@"; do
    case $word in
        --with-build) lists+=("$here/packages-build.txt") ;;
        -*) usage ;;
        *) extra+=("$word") ;;
    esac
done

mapfile -t packages < <(sed 's/#.*//; s/[[:space:]]//g; /^$/d' "${lists[@]}")
packages+=("${extra[@]}")

# Licence texts stay; the rest of doc, man and locale is a third of the size.
dpkg_options=()
for path in doc man info locale lintian bug; do
    dpkg_options+=("--dpkgopt=path-exclude=/usr/share/$path/*")
done
dpkg_options+=('--dpkgopt=path-include=/usr/share/doc/*/copyright')

# Nothing in the sandbox may gain privileges, so no file keeps a setuid or setgid bit. The
# kernel refuses them anyway (no-new-privileges, nosuid); this spares a scanner the question.
# shellcheck disable=SC2016  # $1 is for the shell that mmdebstrap starts
strip_setuid='find "$1" -xdev -type f -perm /6000 -exec chmod ug-s {} +'

# shellcheck disable=SC2016
tidy='rm -rf "$1"/var/cache/* "$1"/var/log/* "$1"/usr/share/python-wheels/__pycache__
    mkdir -p "$1"/run "$1"/tmp "$1"/home "$1"/root
    chmod 1777 "$1"/tmp
    ln -sf fdfind "$1"/usr/bin/fd
    # mmdebstrap leaves the resolver and the name of the building host behind.
    : >"$1"/etc/resolv.conf
    chmod 0644 "$1"/etc/resolv.conf
    echo umwelt >"$1"/etc/hostname
    printf "%s\n" "127.0.0.1 localhost" "::1 localhost" >"$1"/etc/hosts'

# Every program that starts reads the locale: from one file, not from a dozen.
# shellcheck disable=SC2016
locale_archive='chroot "$1" localedef --add-to-archive /usr/lib/locale/C.utf8'

part=$out.part
trap 'rm -f "$part"' EXIT
mmdebstrap --quiet --variant=minbase --format=tar \
    --aptopt='APT::Install-Recommends "false"' \
    "${dpkg_options[@]}" \
    --include="$(IFS=,; echo "${packages[*]}")" \
    --customize-hook="$strip_setuid" \
    --customize-hook="$tidy" \
    --customize-hook="$locale_archive" \
    trixie "$part"
mv "$part" "$out"
