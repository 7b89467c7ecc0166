#!/bin/bash
# A user who has never seen umwelt, with a real podman: installs it, has the host measured, works in a
# sandbox, and removes it again without a trace.
# shellcheck disable=SC2317  # functions are called by check, run and trap
set -euo pipefail
# shellcheck source=tests/vm/checks.bash
. "$(dirname "$(readlink -f "$0")")/checks.bash"

user=umwelt-fresh
clean_up() {
    as "$user" "$home/.local/bin/umwelt-ctl" stop --hard "$home/project" >/dev/null 2>&1 || true
    loginctl disable-linger "$user" 2>/dev/null || true
    systemctl stop "user@$id.service" "user-$id.slice" 2>/dev/null || true
    wait
    userdel --force --remove "$user" >/dev/null 2>&1 || true
    rm -rf "$archive"
}

# A uid of its own: the session of the user of another test may still be on its way out.
id -u "$user" >/dev/null 2>&1 || useradd --create-home --uid 1717 "$user"
id=$(id -u "$user")
home=$(getent passwd "$user" | cut -d: -f6)
archive=$(mktemp -d /opt/umwelt-archive.XXXXXX)
trap clean_up EXIT
chmod 0755 "$archive"
install -m 0755 "$binary" "$archive/umwelt"
loginctl enable-linger "$user"
wait_until 60 test -S "/run/user/$id/bus"

# podman makes its own directories; the image is the one of the other tests.
as dev podman save umwelt:latest | as "$user" podman load >/dev/null
as "$user" mkdir "$home/project"
# What podman keeps for itself in a home is podman's.
listing() { find "$home" \( -path "$home/.local/share/containers" -o -path "$home/.cache" \) -prune -o -printf '%P %y %m %s %l\n' | sort; }
listing >"$archive/before"
images() { as "$user" podman image list --format '{{.Repository}}:{{.Tag}} {{.ID}}' | sort; }
images >"$archive/images-before"

run as "$user" "$archive/umwelt" install install
check 'it is installed from an archive' said 0 'copied to' '7 made in' 'written to' 'imported: ' 'made by other means'
run as "$user" "$archive/umwelt" install install
check 'a second time nothing is done' said 0 'program   is so already' 'links     are so already' \
    'config    is so already' 'ca        is so already' 'gateway   is so already'
bin=$home/.local/bin
run as "$user" "$bin/umwelt-install" status
check 'status finds all of it' said 0 'gateway  ok'
run as "$user" podman run --rm --network=none --read-only --userns=keep-id \
    --entrypoint '["/umwelt", "gateway"]' localhost/umwelt-egress-gw:latest --version
check 'the gateway image runs' said 0 umwelt-gateway

# With its containers it has a test of its own.
run as "$user" "$bin/umwelt-install" doctor --quick
check 'the host is found fit' said 0
for name in user places podman netavark kernel cgroups subids seccomp image nft; do
    check "doctor: $name" grep -qE "^$name +ok " <<<"$said"
done
run as "$user" "$bin/umwelt-ctl" exec "$home/project" -- id -u
check 'commands run in a sandbox' said 0 "$id"
as "$user" "$bin/umwelt-run" --workspace "$home/project" >"$archive/log" 2>&1 </dev/null &
wait_until 240 grep -q 'is ready for' "$archive/log"
run as "$user" "$bin/umwelt-install" remove
check 'nothing is removed while it runs' said 1 'sandboxes run' "$home/project"
check 'the program is still there' test -x "$home/.local/lib/umwelt/umwelt"
as "$user" "$bin/umwelt-ctl" stop "$home/project"
wait

rm -f "$home"/.local/share/umwelt/journal-*
run as "$user" "$bin/umwelt-install" remove
check 'it is removed' said 0 'program   removed'
listing >"$archive/after"
check 'the home is as it was' diff "$archive/before" "$archive/after"
images >"$archive/images-after"
check 'and so are the images' diff "$archive/images-before" "$archive/images-after"

exit "$failed"
