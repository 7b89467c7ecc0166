#!/bin/bash
# Users in odd surroundings: each gets a sandbox, or one clear error.
# shellcheck disable=SC2317  # functions are called by check, run and trap
set -euo pipefail
# shellcheck source=tests/vm/checks.bash
. "$(dirname "$(readlink -f "$0")")/checks.bash"

user=umwelt-odd
place=
clean_up() {
    as "$user" "$place/umwelt" ctl stop --hard "$home/project" >/dev/null 2>&1 || true
    loginctl disable-linger "$user" 2>/dev/null || true
    systemctl stop "user@$id.service" "user-$id.slice" 2>/dev/null || true
    # What podman keeps running where there is no session.
    pkill --signal KILL --uid "$id" || true
    wait
    userdel --force --remove "$user" >/dev/null 2>&1 || true
    rm -rf "$place" /tmp/*-"$id" "/tmp/podman-run-$id"
}

# A uid of its own: the session of the user of another test may still be on its way out.
id -u "$user" >/dev/null 2>&1 || useradd --create-home --uid 1921 "$user"
id=$(id -u "$user")
home=$(getent passwd "$user" | cut -d: -f6)
trap clean_up EXIT
place=$(mktemp -d /opt/umwelt-odd.XXXXXX)
chmod 0755 "$place"
install -m 0755 "$binary" "$place/umwelt"

# bare UMASK COMMAND…: nothing of a login, and a locale that is not UTF-8.
bare() {
    local mask=$1
    shift
    # shellcheck disable=SC2016  # expanded there
    timeout --foreground 300 runuser -u "$user" -- env --chdir=/ -i PATH=/usr/bin:/bin HOME="$home" \
        LC_ALL=de_DE.ISO-8859-1 sh -c 'umask "$1" && shift && exec "$@"' sh "$mask" "$@"
}
# One line that says what is wrong, hints beside it.
one_line() { [[ $(grep -cv '^hint: ' <<<"$said") == 1 && $said != *panicked* ]] || { echo "$said"; return 1; }; }

# No session at all: there is no place for a socket.
mkdir "$home/project"
chown "$user:" "$home/project"
check 'the stage: the user has no runtime directory' test ! -e "/run/user/$id"
run bare 022 "$place/umwelt" run --workspace "$home/project"
check 'without a session nothing starts' said 2 'XDG_RUNTIME_DIR is not set' 'hint: ' 'enable-linger'
check 'and one line says why' one_line
run bare 022 "$place/umwelt" install install --no-image --no-egress
check 'without a session it is installed' said 0 'copied to'
run bare 022 "$home/.local/bin/umwelt-install" remove
check 'and removed' said 0
run bare 022 "$place/umwelt" install doctor --quick
check 'the doctor tells what is missing' said 1 'XDG_RUNTIME_DIR is not set' "enable-linger $id"

loginctl enable-linger "$user"
wait_until 240 test -S "/run/user/$id/bus"
check 'an image for the user' import_small "$user" "$place/root"

# changed COMMAND COMMAND…: where the first has changed the host, for the eyes of the second only.
changed() {
    local change=$1
    shift
    export -f as bare
    export user home
    # shellcheck disable=SC2016  # expanded there
    unshare --mount --propagation private bash -euc "$change"'
        bare 022 "$@"' changed "$@"
}
read_only="mount --bind $home $home && mount -o remount,bind,ro $home"
full="as $user mkdir -p $home/.local/state && mount -t tmpfs -o nr_inodes=1,mode=0700,uid=$id,gid=$id none $home/.local/state"
small="mount -t tmpfs -o size=1m,mode=0700,uid=$id,gid=$id none $home/.local"
run changed "$read_only" "$place/umwelt" run --workspace "$home/project"
check 'a read-only home is one clear line' said 2 'Read-only file system' umwelt
check 'and no more' one_line
run changed "$full" "$place/umwelt" run --workspace "$home/project"
check 'a full disk is one clear line' said 2 'No space left' umwelt
check 'and no more' one_line
run changed "$small" "$place/umwelt" install install --no-image --no-egress
check 'a disk with no room for the program is one clear line' said 1 'No space left' 'hint: make room'

# in_sandbox UMASK: umwelt-mcp, as a client starts it, and what its shell says.
# shellcheck disable=SC2094  # it is waited for what is written
in_sandbox() {
    local say='umask; cat /etc/hosts; echo x >made; id -u; ls -l /run/umwelt/output >/dev/null && echo listed'
    {
        printf '%s\n' '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}' \
            '{"jsonrpc":"2.0","method":"notifications/initialized"}' \
            '{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"shell","arguments":{"command":"'"$say"'"}}}'
        wait_until 240 grep -q '"id":2' "$place/said"
        # While it runs: what can nobody reach of it, and what is open to others?
        reachable >"$place/reachable"
    } | bare "$1" "$home/.local/bin/umwelt-mcp" --workspace "$home/project" >"$place/said" 2>"$place/stderr"
}
reachable() {
    setpriv --reuid=nobody --regid=nogroup --clear-groups \
        find "$home/.local/state/umwelt" "$home/.local/share/umwelt" "/run/user/$id" -mindepth 1 2>/dev/null || true
    find "$home"/.local/{bin,lib,state/umwelt,share/umwelt} "$home/.config" "/run/user/$id"/umwelt-* ! -type l -perm /022
}
has_ended() { ! pgrep -u "$id" -x 'umwelt|umwelt-run|umwelt-mcp' >/dev/null; }
# Anybody may pass here: what is ours has to be private by itself.
chmod 0755 "$home"
for mask in 000 077; do
    rm -f "$place/said"
    : >"$place/said"
    run bare "$mask" "$place/umwelt" install install --no-image --no-egress
    check "umask $mask: it is installed" said 0 'copied to'
    in_sandbox "$mask" || true
    said=$(cat "$place/said" "$place/stderr")
    status=0
    check "umask $mask: umwelt-mcp has a working sandbox" said 0 '0022' 'localhost' "\\n$id\\n" listed
    check "umask $mask: nobody else reaches what it made" test ! -s "$place/reachable"
    cat "$place/reachable"
    check "umask $mask: files of commands are as ever" test "$(stat -c %a "$home/project/made")" = 644
    rm -f "$home/project/made"
    # It writes what it has done when the sandbox is gone.
    wait_until 240 has_ended
    rm -rf "$home/.local"/{bin,lib,state,share/umwelt}
done

exit "$failed"
