#!/bin/bash
# The way out of a sandbox as seen from outside: the rest of the world is a network namespace with
# documentation addresses, and what arrives there, and what the sandbox puts on its own network, is
# captured. Only root can set this stage; what is played on it is in podman_egress/outside.rs.
# shellcheck disable=SC2317  # functions are called by check, run and trap
set -euo pipefail
# shellcheck source=tests/vm/checks.bash
. "$(dirname "$(readlink -f "$0")")/checks.bash"

folder=$(as dev mktemp -d /home/dev/tv-egress.XXXXXX)
world=umwelt-outside
clean_up() {
    # Their sign to end.
    rm -f "$folder/names"
    wait
    ip netns del "$world" 2>/dev/null || true
    ip link del umwelt-out 2>/dev/null || true
    umount "$folder/data" 2>/dev/null || true
    rm -rf "$folder"
}
trap clean_up EXIT

touch "$folder/names"
as dev cp "$here/capture.py" "$here/outside.py" "$folder/"
ip netns add "$world"
ip link add umwelt-out type veth peer name eth0 netns "$world"
ip addr add 203.0.113.1/24 dev umwelt-out
ip addr add 2001:db8:7::1/64 dev umwelt-out nodad
ip link set umwelt-out up
ip -n "$world" addr add 203.0.113.10/24 dev eth0
ip -n "$world" addr add 203.0.113.53/24 dev eth0
ip -n "$world" addr add 2001:db8:7::10/64 dev eth0 nodad
ip -n "$world" link set eth0 up
ip -n "$world" link set lo up
ip -n "$world" route add default via 203.0.113.1

# Files that the user's test reads and removes.
ip netns exec "$world" python3 "$folder/capture.py" "$folder/names" >"$folder/outside.packets" 2>"$folder/outside.log" &
ip netns exec "$world" python3 "$folder/outside.py" "$folder" 203.0.113.10 203.0.113.53 2>"$folder/world.log" &
limit=1500 as dev podman unshare --rootless-netns python3 "$folder/capture.py" "$folder/names" \
    >"$folder/inside.packets" 2>"$folder/inside.log" &
for log in outside inside; do wait_until 240 grep -q ready "$folder/$log.log"; done

# A disk that can be full.
as dev mkdir "$folder/data"
mount -t tmpfs -o size=2m,uid=1000,gid=1000,mode=0700 data "$folder/data"

# The resolver of the host is the one outside, for this test alone.
echo 'nameserver 203.0.113.53' >"$folder/resolv.conf"
play() {
    local test
    for test in "$here"/../../podman_egress*; do
        [[ ! -x $test ]] || break
    done
    # shellcheck disable=SC2016  # expanded there
    unshare --mount sh -c 'mount --bind "$1" /etc/resolv.conf; shift; exec "$@"' sh "$folder/resolv.conf" \
        runuser -u dev -- env --chdir=/ -i PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 USER=dev HOME=/home/dev \
        XDG_RUNTIME_DIR=/run/user/1000 DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/1000/bus \
        UMWELT_BINARY="$binary" UMWELT_REQUIRE_PODMAN=1 UMWELT_TEST_OUTSIDE="$folder" \
        timeout 1200 "$test" --nocapture --test-threads=1 outside::
}
run play
check 'nothing leaves but what is allowed, and failures are closed and said' said 0 '1 passed'

exit "$failed"
