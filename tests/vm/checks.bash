# shellcheck shell=bash disable=SC2034  # what is set here is used there
# For the scripts beside this file. They run as root in the machine of scripts/vm, print a line
# "ok NAME" or "not ok NAME" for each check, and undo what they did.

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=tests/check.bash
. "$here/../check.bash"
# Where scripts/test puts it, else what scripts/vm has installed.
binary=${UMWELT_BINARY-$here/../../umwelt}
[[ -x $binary ]] || binary=/home/dev/.local/lib/umwelt/umwelt

((EUID == 0)) || { echo 'not ok: this must run as root, in the machine'; exit 1; }

# The text $said holds each of the words, and the status $status is the first argument.
said() {
    local word
    [[ $status == "$1" ]] || { echo "status $status, not $1: $said"; return 1; }
    shift
    for word in "$@"; do
        [[ $said == *"$word"* ]] || { echo "no \"$word\" in: $said"; return 1; }
    done
}

# Runs a command or function; sets $said to its output and $status.
run() {
    status=0
    said=$("$@" 2>&1 </dev/null) || status=$?
}

# as USER [NAME=VALUE…] COMMAND…, in the environment of a login, for five minutes at most; what stays in
# the background has a longer $limit before it.
as() {
    local user=$1 id
    shift
    id=$(id -u "$user")
    # Away from the caller's folder, which the user may not enter.
    timeout --foreground "${limit:-300}" runuser -u "$user" -- env --chdir=/ -i PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 \
        USER="$user" LOGNAME="$user" HOME="$(getent passwd "$user" | cut -d: -f6)" \
        XDG_RUNTIME_DIR="/run/user/$id" DBUS_SESSION_BUS_ADDRESS="unix:path=/run/user/$id/bus" "$@"
}

# wait_until SECONDS COMMAND…; the last look comes after that: the machine may have stood still.
wait_until() {
    local end=$((SECONDS + $1)) is_last=
    shift
    until "$@"; do
        [[ -z $is_last ]] || { echo "waited for: $*"; return 1; }
        ((SECONDS < end)) || is_last=yes
        sleep 0.1
    done
}

# import_small USER FOLDER: an image with a shell, what probes call, and a program with the set-uid
# bit, which is imported in no time; and it is the one that is configured. FOLDER must not exist.
import_small() {
    local user=$1 root=$2 file
    mkdir -p "$root"/{bin,usr/bin,etc,tmp,run,proc,sys,dev,home}
    for file in /usr/bin/{dash,id,sleep,su,cat,ls}; do
        install -m "$(stat -c %a "$file")" "$file" "$root/usr/bin/"
        ldd "$file" | grep -o '/lib[^ ]*'
    done | sort -u | while read -r file; do install -D "$file" "$root$file"; done
    ln -s ../usr/bin/dash "$root/bin/sh"
    tar -C "$root" -c . | as "$user" podman import --quiet - umwelt-small
    as "$user" sh -c "mkdir -p ~/.config/umwelt && echo 'image = \"umwelt-small\"' >~/.config/umwelt/umwelt.toml"
}
