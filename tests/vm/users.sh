#!/bin/bash
# Other users before a sandbox: root starts none, and nobody else commands one.
# shellcheck disable=SC2317  # functions are called by check, run and trap
set -euo pipefail
# shellcheck source=tests/vm/checks.bash
. "$(dirname "$(readlink -f "$0")")/checks.bash"

folder=$(as dev mktemp -d /home/dev/tv-users.XXXXXX)
sid=$(printf %s "$folder/project" | sha256sum | cut -c1-8)
socket=/run/user/1000/umwelt-users-$sid.sock
umwelt=(as dev XDG_CONFIG_HOME="$folder/config" "$folder/umwelt")
clean_up() {
    "${umwelt[@]}" ctl stop "$folder/project" >/dev/null 2>&1 ||
        "${umwelt[@]}" ctl stop --hard "$folder/project" || true
    wait
    rm -rf "$folder" "${socket%.sock}" "${socket%.sock}.lock"
}
trap clean_up EXIT

install -D -o dev -m 0755 "$binary" "$folder/umwelt"
as dev mkdir -p "$folder/project" "$folder/config/umwelt"
as dev sh -c "echo 'session_prefix = \"umwelt-users\"' >$folder/config/umwelt/umwelt.toml"

mkdir -p /run/user/0
chmod 0700 /run/user/0
run env XDG_RUNTIME_DIR=/run/user/0 HOME=/root XDG_CONFIG_HOME="$folder/none" "$folder/umwelt" run \
    --workspace "$folder/project"
check 'root is refused' said 1 'umwelt does not run as root' 'hint: '

run as dev XDG_RUNTIME_DIR=/run/user/0 "$folder/umwelt" run --workspace "$folder/project"
check "another user's runtime directory is refused" said 2 '/run/user/0'

limit=1200 "${umwelt[@]}" run --workspace "$folder/project" >"$folder/log" 2>&1 </dev/null &
wait_until 240 grep -q 'is ready for' "$folder/log"

# ask [PROGRAM…]: says hello on the socket, as the user that the program makes of us.
ask() {
    "$@" python3 -c '
import socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.settimeout(120)
try:
    peer.connect(sys.argv[1])
    peer.sendall(b"{\"id\":1,\"method\":\"hello\",\"params\":{\"api\":1,\"client\":\"x\"}}\n")
    print(peer.recv(4096) or "nothing")
except ConnectionError as error:
    print("nothing:", error)
except PermissionError as error:
    print("no way", error)
' "$socket"
}

run ask as dev
check 'the stage: its own user is answered' said 0 '"api":1'
run ask setpriv --reuid=nobody --regid=nogroup --clear-groups
check 'nobody does not reach the socket' said 0 'no way'
# Whoever gets past the modes is told apart by the kernel.
run ask setpriv --reuid=nobody --regid=nogroup --clear-groups --inh-caps=+dac_override --ambient-caps=+dac_override
check 'nobody with a capability is not answered' said 0 nothing
run ask
check 'root is not answered' said 0 nothing
run ask as dev
check 'its own user still is' said 0 '"api":1'

exit "$failed"
