#!/bin/bash
# A file system that is mounted below what a sandbox shows: for these tests of podman_commands/ only
# root can set the stage.
# shellcheck disable=SC2317  # functions are called by check, run and trap
set -euo pipefail
# shellcheck source=tests/vm/checks.bash
. "$(dirname "$(readlink -f "$0")")/checks.bash"

folder=$(as dev mktemp -d /home/dev/tv-submount.XXXXXX)
point=$folder/shown/mounted
clean_up() {
    umount "$point" || true
    rm -rf "$folder"
}
trap clean_up EXIT

as dev mkdir -p "$point"
mount -t tmpfs -o size=1m,uid=1000,gid=1000,mode=0755 submount "$point"

# Where scripts/test puts it.
for test in "$here"/../../podman_commands*; do
    [[ ! -x $test ]] || break
done
run as dev UMWELT_BINARY="$binary" UMWELT_REQUIRE_PODMAN=1 UMWELT_TEST_SUBMOUNT="$point" \
    "$test" --nocapture mounts::what_is_mounted
check 'what is mounted below a base bind and below the workspace' said 0 '2 passed'

exit "$failed"
