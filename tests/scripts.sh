#!/bin/bash
# The scripts for developers: each says how it is called. Nothing is built.
# shellcheck disable=SC2317  # functions are called by check
set -euo pipefail

repo=$(dirname "$(dirname "$(readlink -f "$0")")")
failed=0

# check NAME COMMAND…
check() {
    local name=$1 said
    shift
    if said=$("$@" 2>&1); then
        echo "ok $name"
    else
        echo "not ok $name"
        printf '%s\n' "$said" | sed 's/^/    /'
        failed=1
    fi
}

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

exit "$failed"
