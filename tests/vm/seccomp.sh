#!/bin/bash
# Hosts whose default seccomp profile is missing, or not understood: nothing starts there.
# shellcheck disable=SC2317  # functions are called by check, run and trap
set -euo pipefail
# shellcheck source=tests/vm/checks.bash
. "$(dirname "$(readlink -f "$0")")/checks.bash"

folder=$(as dev mktemp -d /home/dev/tv-seccomp.XXXXXX)
trap 'rm -rf "$folder"' EXIT
install -D -o dev -m 0755 "$binary" "$folder/umwelt"
as dev mkdir -p "$folder/project" "$folder/config"
profile=/usr/share/containers/seccomp.json

# with_profile COMMAND: umwelt-run where the shell command has changed the profile. Others see
# nothing of it: it happens in a mount namespace of its own.
with_profile() {
    export -f as
    export folder profile
    # shellcheck disable=SC2016  # expanded there
    unshare --mount --propagation private bash -euc "$1"'
        as dev XDG_CONFIG_HOME="$folder/config" "$folder/umwelt" run --workspace "$folder/project"'
}

run with_profile 'mount -t tmpfs none /usr/share/containers'
check 'a missing profile is refused by name' said 1 'seccomp profile' "$profile" 'No such file' 'hint: '
run with_profile "mount --bind /dev/null $profile"
check 'an empty profile is refused' said 1 'seccomp profile' "$profile"
run with_profile "mount -t tmpfs none /usr/share/containers
    echo '{\"defaultAction\": \"SCMP_ACT_ALLOW\", \"syscalls\": []}' >$profile"
check 'a profile that allows by default is refused' said 1 'its default action is not SCMP_ACT_ERRNO'

exit "$failed"
