#!/bin/bash
# The scripts for developers: each says how it is called, and scripts/vm finds a machine through a
# link. Nothing is built, and no machine is started.
# shellcheck disable=SC2317  # functions are called by check and trap
set -euo pipefail

repo=$(dirname "$(dirname "$(readlink -f "$0")")")
# shellcheck source=tests/check.bash
. "$repo/tests/check.bash"
work=$(mktemp -d)

clean_up() {
    [[ -z ${machine-} ]] || kill "$machine" 2>/dev/null || true
    [[ ! -e $work/state/control ]] || rm -rf "$(cat "$work/state/control")"
    rm -rf "$work"
}
trap clean_up EXIT

# Prints its usage and nothing that is no part of it.
explains() {
    local said
    said=$("$repo/scripts/$1" "$2") && grep -q "^usage: scripts/$1" <<<"$said" &&
        ! grep -E '^#|^set ' <<<"$said"
}

refuses() { ! "$@" --no-such-option; }

for name in test bench vm release demo; do
    check "scripts/$name --help says how it is called" explains "$name" --help
    check "and so does scripts/$name -h" explains "$name" -h
    check "scripts/$name refuses what it does not know" refuses "$repo/scripts/$name"
done

# The machine is a process with the path of the disk in its command line.
mkdir -p "$work/checkout/scripts" "$work/checkout/target" "$work/state"
cp "$repo/scripts/vm" "$work/checkout/scripts/"
ln -s "$work/state" "$work/checkout/target/vm"
(exec -a "file=$(readlink -f "$work/state")/disk.img," sleep 600) &
machine=$!
echo "$machine" >"$work/state/pid"
echo 1 >"$work/state/port"
until grep -q disk.img "/proc/$machine/cmdline"; do :; done
# Nobody answers at its port.
finds() { grep "^running: pid $machine," <<<"$("$work/checkout/scripts/vm" status 2>&1)"; }
check 'a machine is found through a link' finds
echo 1 >"$work/state/pid"
refuses_other() { ! "$work/checkout/scripts/vm" status; }
check 'and another process is not taken for one' refuses_other

exit "$failed"
