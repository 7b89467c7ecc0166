#!/bin/bash
# A user whose systemd instance lacks cgroup controllers: umwelt-run must refuse with status 3 and
# with commands that repair it; and levels that belong to the user it must repair by itself.
# shellcheck disable=SC2317  # functions are called by check, run and trap
set -euo pipefail
# shellcheck source=tests/vm/checks.bash
. "$(dirname "$(readlink -f "$0")")/checks.bash"

user=umwelt-nodeleg
drop_in=
# What the commands of the message write.
repair=/etc/systemd/system/user@.service.d/delegate.conf

clean_up() {
    loginctl disable-linger "$user" 2>/dev/null || true
    systemctl stop "user@$id.service" "user-$id.slice" 2>/dev/null || true
    rm -rf "$repair" "$drop_in"
    rmdir --ignore-fail-on-non-empty "${repair%/*}" 2>/dev/null || true
    systemctl daemon-reload
    userdel --force --remove "$user" >/dev/null 2>&1 || true
}

id -u "$user" >/dev/null 2>&1 || useradd --create-home "$user"
id=$(id -u "$user")
home=$(getent passwd "$user" | cut -d: -f6)
manager=/sys/fs/cgroup/user.slice/user-$id.slice/user@$id.service
trap clean_up EXIT

drop_in=/etc/systemd/system/user@$id.service.d
mkdir -p "$drop_in"
# Before the file of the message, which shall win.
printf '[Service]\nDelegate=\nDelegate=pids\n' >"$drop_in/00-few.conf"
rm -f "$repair"
systemctl daemon-reload
loginctl enable-linger "$user"
wait_until 240 test -S "/run/user/$id/bus"

lacks_cpu() { ! grep -qw cpu "$manager/cgroup.controllers"; }
has_all() {
    local name
    for name in cpu memory pids; do grep -qw "$name" "$1" || return 1; done
}

check 'the stage: this user lacks the controller cpu' lacks_cpu

install -D -o "$user" -m 0755 "$binary" "$home/bin/umwelt"
as "$user" mkdir -p "$home/project" "$home/.config/umwelt"
umwelt_run() { as "$user" UMWELT_LOG=info "$home/bin/umwelt" run --workspace "$home/project"; }

run umwelt_run
check 'missing delegation is status 3, and named' said 3 "not delegated to uid $id" cpu 'hint: '

# Nothing but what the message says, as a person would paste it.
commands=$(sed -n 's/^hint: //p' <<<"$said")
check 'the commands are named' test -n "$commands"
run as "$user" "$home/bin/umwelt" install doctor --fix-commands
check 'so finds the doctor' said 1 "not delegated to uid $id" 'systemctl restart'
check 'which has run nothing' test ! -e "$repair"
# Those of this check alone.
found=$(awk '/^#/ { ours = /^# cgroups:/ } ours && !/^#/' <<<"$said")
check 'with the same commands' test "$found" = "$commands"

repair_it() { bash -euxc "$commands"; }
check 'the commands run' repair_it
wait_until 240 test -S "/run/user/$id/bus"
check 'the commands delegate the controllers' has_all "$manager/cgroup.controllers"

# An image with nothing but a shell is imported in no time.
import_image() {
    local root=$home/root file
    mkdir -p "$root/bin" "$root/tmp"
    for file in /bin/dash $(ldd /bin/dash | grep -o '/lib[^ ]*'); do
        install -D "$file" "$root$file"
    done
    ln -s dash "$root/bin/sh"
    tar -C "$root" -c . | as "$user" podman import --quiet - umwelt-small
    as "$user" sh -c "printf '%s\n' 'image = \"umwelt-small\"' >\$HOME/.config/umwelt/umwelt.toml"
}
check 'an image for the user' import_image

# Starts a sandbox and runs a command in it; $said is what umwelt-run said.
use_sandbox() {
    local log=$home/log pid
    umwelt_run >"$log" 2>&1 &
    pid=$!
    wait_until 240 grep -q 'is ready for\|^umwelt-run: [^:]*$' "$log" || true
    shell_says=$(as "$user" "$home/bin/umwelt" ctl exec "$home/project" -- sh -c 'echo works' 2>&1) || true
    as "$user" "$home/bin/umwelt" ctl stop "$home/project" >/dev/null 2>&1 || kill "$pid"
    status=0
    wait "$pid" || status=$?
    said=$(cat "$log")
    [[ $shell_says == works ]] || { echo "$shell_says; $said"; return 1; }
}
use_sandbox >"$home/use" 2>&1 || true
check 'then the sandbox starts and ends' said 0 'is ready for'
check 'and a command runs in it' test "$shell_says" = works

# The levels below belong to the user, so umwelt-run gets them right by itself. The lower one is
# there only while something is in it, and may be on its way out.
take_away() {
    local level
    # From the bottom up: a level cannot take away what one below it passes on.
    find "$manager" -depth -name cgroup.subtree_control | while read -r level; do
        as "$user" sh -c "echo '-cpu -pids' >$level" || true
    done
    ! has_all "$manager/cgroup.subtree_control"
}
# What ran just now may hold a level busy for a moment.
check 'the stage: the user has not enabled the controllers' wait_until 240 take_away
use_sandbox >"$home/use" 2>&1 || true
check 'umwelt-run enables them and says so' said 0 'enabling cpu' 'is ready for'
check 'they are enabled' has_all "$manager/cgroup.subtree_control"

exit "$failed"
