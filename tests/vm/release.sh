#!/bin/bash
# From what scripts/release makes to the first result of a command: an ordinary user with the archive,
# another one with the Debian package. Afterwards nothing is left of either. The sandbox that stays,
# by the systemd unit, is tried on the way. What is compared is all of the system: what changes that is
# not to run meanwhile. scripts/test runs it, and so does `scripts/release --check`.
# shellcheck disable=SC2317  # functions are called by check, run and trap
set -euo pipefail
# shellcheck source=tests/vm/checks.bash
. "$(dirname "$(readlink -f "$0")")/checks.bash"

release=${UMWELT_RELEASE-$here/../../release-test}
archive=$(echo "$release"/umwelt-*-linux.tar.xz)
package=$(echo "$release"/umwelt_*.deb)
folder=$(basename "$archive" .tar.xz)
stage=$(mktemp -d /opt/umwelt-release.XXXXXX)
users=(umwelt-tarball umwelt-debian)

clean_up() {
    local name
    for name in "${users[@]}"; do
        id=$(id -u "$name" 2>/dev/null) || continue
        loginctl disable-linger "$name" 2>/dev/null || true
        systemctl stop "user@$id.service" "user-$id.slice" 2>/dev/null || true
        userdel --force --remove "$name" >/dev/null 2>&1 || true
    done
    dpkg --purge umwelt >/dev/null 2>&1 || true
    rm -rf "$stage"
}
trap clean_up EXIT

# be NAME UID: a user who has never seen umwelt, with a project.
be() {
    user=$1
    # A uid of its own: the session of the user of another test may still be on its way out.
    useradd --create-home --uid "$2" "$user"
    id=$2
    home=$(getent passwd "$user" | cut -d: -f6)
    loginctl enable-linger "$user"
    wait_until 240 test -S "/run/user/$id/bus"
    as "$user" mkdir "$home/project"
    echo hello | as "$user" tee "$home/project/README" >/dev/null
    install -o "$user" -m 0644 "$stage/sandbox.tar" "$home/sandbox.tar"
    as "$user" podman info >/dev/null
}

# What podman keeps for itself in a home is podman's.
listing() {
    find "$home" -ignore_readdir_race \( -path "$home/.local/share/containers" -o -path "$home/.cache" \) -prune -o \
        -printf '%P %y %m %s %l\n' | sort
}

# What a package could change of the system, but for what its timers do at their time.
system_listing() {
    find /usr /etc /var -xdev -ignore_readdir_race \( -path /var/lib/dpkg -o -path /var/log -o -path /var/cache -o \
        -path /var/lib/systemd -o -path /var/lib/logrotate -o -path /var/backups -o -path /var/tmp \) -prune -o -printf '%p %y %m %U %s %l\n' | sort
}

# A root file system with little more than a shell, as tar: the whole one takes minutes to import.
root_file_system() {
    local root=$stage/root name file
    mkdir -p "$root"/usr/{bin,lib,lib64} "$root"/{etc,home,proc,root,run,sys,tmp}
    ln -s usr/bin usr/lib usr/lib64 "$root"
    for name in bash cat env id ls sleep true; do
        file=$(readlink -f "$(type -P "$name")")
        cp "$file" "$root/usr/bin/$name"
        ldd "$file" | grep -o '/[^ ]*' | xargs cp --dereference --parents --target-directory="$root"
    done
    ln -s bash "$root/usr/bin/sh"
    tar -C "$root" --owner=0 --group=0 -c .
}

# removes COMMAND…: where podman does not say in time what runs, nothing is removed, until it does.
removes() {
    local try
    for try in 1 2 3; do
        run "$@" remove --purge
        [[ $said == *'it took more than'* ]] || return 0
        echo "# try $try: $said"
    done
}

# ---- the session of a new user, kept as text ----

# Types a line of shell; it and what it prints go into the transcript.
types() {
    echo "\$ $1" >>"$transcript"
    as "$user" sh -c "cd; $1" >>"$transcript" 2>&1 </dev/null || echo "it failed: $?" >>"$transcript"
}

# tells REQUEST [FILTER]: sends a message, and keeps what FILTER picks from the reply.
tells() {
    local line=
    echo "> $1" >>"$transcript"
    echo "$1" >&"${server[1]}"
    [[ -n ${2-} ]] || return 0
    # Other messages may come before the reply.
    until [[ $line == *'"id":'* ]]; do
        IFS= read -r -t 240 line <&"${server[0]}" || { echo "no reply: $(<"$stage/server.err")" >>"$transcript" && return; }
    done
    jq -c "$2" <<<"$line" 2>&1 | sed 's/^/< /' >>"$transcript"
}

# Starts the MCP server $1 as a client does, and has it run a command.
talks() {
    echo "\$ $1" >>"$transcript"
    coproc server { as "$user" sh -c "cd; exec $1" 2>"$stage/server.err"; }
    # shellcheck disable=SC2154  # coproc sets it
    local pid=$server_PID
    tells '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"hand","version":"1"}}}' \
        '{id, result: {serverInfo: .result.serverInfo}}'
    tells '{"jsonrpc":"2.0","method":"notifications/initialized"}'
    tells '{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"shell","arguments":{"command":"pwd; cat README; echo > /dev/tcp/192.0.2.1/443; ls /home"}}}' \
        '{id, result: {content: .result.content}}'
    eval "exec ${server[1]}>&-"
    wait "$pid" || true
}

# As it stands in the document: of another user, on another day.
plain() {
    sed -E "s|$user|you|g; s|umwelt-[0-9.]+-$(uname -m)|umwelt-0.1.0-x86_64|g; s|until [0-9-]+|until 2029-03-04|
        s|umwelt sandbox\",\"version\":\"[0-9.]+\"|umwelt sandbox\",\"version\":\"0.1.0\"|; s|after [0-9.]+ s|after 0.1 s|" "$1"
}

# shellcheck disable=SC2016  # of Markdown
document() { sed -n '/^```console$/,/^```$/{/^```/d;p}' "$home/$folder/docs/first-session.md"; }

# ---- the archive ----

root_file_system >"$stage/sandbox.tar"
be umwelt-tarball 1818
install -o "$user" -m 0644 "$archive" "$home/"
listing >"$stage/before"
transcript=$stage/transcript
types "tar -xJf $(basename "$archive")"
types "$folder/umwelt install install --image-from sandbox.tar"
talks '.local/bin/umwelt-mcp --workspace project'
plain "$transcript" >"$stage/transcript.plain"
document >"$stage/document" || true
check 'the first session is the one in docs/first-session.md' diff "$stage/document" "$stage/transcript.plain"
run as "$user" "$home/.local/bin/umwelt-install" status
check 'status finds all of it' said 0 'unit  '

# ---- a sandbox that stays ----

ctl() { as "$user" "$home/.local/bin/umwelt-ctl" "$@"; }
user_systemctl() { as "$user" systemctl --user "$@"; }
property() { user_systemctl show --value --property="$1" "$unit"; }
is_ready() { [[ $(ctl status 2>/dev/null) == *" ready "* ]]; }
runs_anew() { [[ $(property MainPID) != "$before" && $(property MainPID) != 0 ]] && is_ready; }
containers() { as "$user" podman ps --all --quiet; }
# podman cleans up by a process of its own, which may end later.
is_nothing_left() { ! pgrep -u "$id" -x 'umwelt|umwelt-run|conmon|crun|podman' >/dev/null; }
nothing_stays() { wait_until 240 is_nothing_left || { pgrep -a -u "$id"; return 1; }; }
# podman has made the sandbox by then, and may still be on its way out.
is_alone() { [[ $(as "$user" cat "/sys/fs/cgroup$(property ControlGroup)/cgroup.procs") == "$(property MainPID)" ]]; }

# A name that systemd, and a shell, could take for something else.
project="$home/a \$HOME %h project"
as "$user" mkdir "$project"
unit=umwelt-run@$(systemd-escape --path "$project").service
run as "$user" systemd-analyze --user --man=no verify "$home/.local/share/systemd/user/umwelt-run@.service"
check 'systemd has nothing against the unit' test "$status:$said" = 0:
run user_systemctl enable --now "$unit"
check 'an instance is enabled and started' said 0
wait_until 240 is_ready
run ctl exec "$project" -- sh -c 'pwd; id -u'
check 'commands run in its sandbox' said 0 "$project" "$id"
check 'the control plane is alone in the unit' wait_until 240 is_alone

before=$(property MainPID)
kill -KILL "$before"
wait_until 240 runs_anew
check 'it comes back after it was killed' test "$(property NRestarts)" = 1
run ctl exec "$project" -- true
check 'and serves as before' said 0
# Its user cannot read the journal in this machine, which keeps none on a disk.
run journalctl --quiet --output=cat _UID="$id" USER_UNIT="$unit"
check 'the journal tells of it' said 0 'status=9/KILL'
run user_systemctl stop "$unit"
check 'it is stopped in order' test "$status:$(property Result):$(property ActiveState)" = 0:success:inactive
check 'no container is left' test -z "$(containers)"
check 'no process is left' nothing_stays
check 'no socket is left' test -z "$(find "/run/user/$id" -maxdepth 1 -name 'umwelt-*.sock')"

run user_systemctl start 'umwelt-run@-.service'
wait_until 240 user_systemctl is-failed --quiet 'umwelt-run@-.service'
unit='umwelt-run@-.service'
check 'a workspace that is refused is not tried again' test "$(property ExecMainStatus):$(property NRestarts)" = 2:0
run ctl exec "$home/project" -- true
check 'the stage: nothing is left of all that to hold up removal' said 0

# ---- gone again ----

removes as "$user" "$home/.local/bin/umwelt-install"
check 'it is removed' said 0 'program   removed' 'unit      1 disabled' 'image     removed: umwelt:latest'
as "$user" rm -r "$home/$folder" "$project"
listing >"$stage/after"
check 'the home is as it was' diff "$stage/before" "$stage/after"
check 'no image is left' test -z "$(as "$user" podman image list --quiet)"

# ---- the package ----

be umwelt-debian 1819
listing >"$stage/before"
system_listing >"$stage/system-before"
run dpkg --install "$package"
check 'the package is installed' said 0 'Setting up umwelt'
unit=umwelt-run@x.service
check "users have the package's unit" test "$(property FragmentPath)" = '/usr/lib/systemd/user/umwelt-run@.service'
transcript=$stage/transcript-debian
types 'umwelt-install install --no-egress --image-from sandbox.tar'
talks 'umwelt-mcp --workspace project'
run cat "$transcript"
check 'a command has run' said 0 "$home/project" hello 'imported: umwelt:latest'
user_systemctl daemon-reload
check 'the unit of the user comes first' test "$(property FragmentPath)" = "$home/.local/share/systemd/user/umwelt-run@.service"
removes as "$user" umwelt-install
check 'it is removed from the home' said 0 'program   removed'
run dpkg --purge umwelt
check 'the package is removed' said 0
listing >"$stage/after"
check 'this home is as it was' diff "$stage/before" "$stage/after"
system_listing >"$stage/system-after"
check 'and so is the system' diff "$stage/system-before" "$stage/system-after"

exit "$failed"
