# shellcheck shell=bash disable=SC2034  # what is set here is used there
# For test scripts: a line "ok NAME" or "not ok NAME" for each check.

failed=0

# check NAME COMMAND…: the command must succeed; what it prints is shown if it does not.
check() {
    local name=$1 output
    shift
    if output=$("$@" 2>&1); then
        echo "ok $name"
    else
        echo "not ok $name"
        printf '%s\n' "$output" | sed 's/^/    /'
        failed=1
    fi
}
