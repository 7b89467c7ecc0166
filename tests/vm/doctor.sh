#!/bin/bash
# A user who has never seen umwelt, with a real podman: installs it, has the host measured, works in
# a sandbox, and removes it again without a trace. On a good host each check of the doctor passes,
# each one fires when what it looks at is broken, and it leaves nothing, also when it is interrupted.
# Delegation has a test of its own.
# shellcheck disable=SC2317  # functions are called by check, run and trap
set -euo pipefail
# shellcheck source=tests/vm/checks.bash
. "$(dirname "$(readlink -f "$0")")/checks.bash"

user=umwelt-doctor
place=
clean_up() {
    as "$user" "$place/umwelt" ctl stop --hard "$home/project" >/dev/null 2>&1 || true
    loginctl disable-linger "$user" 2>/dev/null || true
    systemctl stop "user@$id.service" "user-$id.slice" 2>/dev/null || true
    rm -rf "$place"
    wait
    userdel --force --remove "$user" >/dev/null 2>&1 || true
}

id -u "$user" >/dev/null 2>&1 || useradd --create-home --uid 1919 "$user"
id=$(id -u "$user")
home=$(getent passwd "$user" | cut -d: -f6)
trap clean_up EXIT
place=$(mktemp -d /opt/umwelt-doctor.XXXXXX)
chmod 0755 "$place"
install -m 0755 "$binary" "$place/umwelt"
loginctl enable-linger "$user"
wait_until 240 test -S "/run/user/$id/bus"

# shellcheck disable=SC2120  # run passes arguments on
doctor() { as "$user" PATH="$home/.local/bin:$PATH" "$place/umwelt" install doctor "$@"; }
# verdict CHECK: of the table in $said.
verdict() { awk -v check="$1 " 'index($0, check) == 1 { print $2 }' <<<"$said" | sort -u | tr '\n' ' '; }
# finds CHECK VERDICT WORD…
finds() {
    local check=$1 verdict=$2 word line
    shift 2
    [[ $(verdict "$check") == "$verdict " ]] || { echo "$check: not $verdict: $said"; return 1; }
    line=$(grep "^$check " <<<"$said")
    for word in "$@"; do [[ $line == *"$word"* ]] || { echo "no \"$word\" in: $line"; return 1; }; done
}

check 'an image for the user' import_small "$user" "$place/root"
as "$user" mkdir "$home/project"
# What podman keeps for itself in a home is podman's.
listing() {
    find "$home" -ignore_readdir_race \( -path "$home/.local/share/containers" -o -path "$home/.cache" \) -prune -o \
        -printf '%P %y %m %s %l\n' | sort
    # What others have in /tmp may go meanwhile.
    find /tmp "/run/user/$id" -maxdepth 1 -ignore_readdir_race -user "$user" -name '*umwelt*'
    as "$user" podman ps --all --quiet
    as "$user" podman network ls --format '{{.Name}}'
}
images() { as "$user" podman image list --format '{{.Repository}}:{{.Tag}} {{.ID}}' | sort; }
listing >"$place/never"
images >"$place/never-images"

run as "$user" "$place/umwelt" install install --no-image
check 'umwelt is installed' said 0 'copied to' '7 made in' 'imported: '
run as "$user" "$place/umwelt" install install --no-image
check 'a second time nothing is done' said 0 'program   is so already' 'links     are so already' \
    'config    kept, as it was edited' 'ca        is so already' 'gateway   is so already'
bin=$home/.local/bin
run as "$user" "$bin/umwelt-install" status
check 'status finds all of it' said 0 'gateway  ok'
run as "$user" podman run --rm --network=none --read-only --userns=keep-id \
    --entrypoint '["/umwelt", "gateway"]' localhost/umwelt-egress-gw:latest --version
check 'the gateway image runs' said 0 umwelt-gateway

listing >"$place/before"

# A refusal for which the machine took seconds looks like one that does not come at once.
measures() {
    local try
    for try in 1 2 3; do
        run doctor
        [[ $said == *'not refused'* ]] || return 0
        echo "# try $try: $said"
    done
}
measures
check 'a good host is found fit' said 0
for name in user places config podman netavark storage kernel cgroups subids seccomp image nft disk installed keep-id hook sandbox \
    seal-user seal-capabilities seal-privileges seal-seccomp seal-root seal-network seal-limits seal-namespaces \
    seal-home seal-kernel seal-socket seal-setuid egress egress-gateway egress-names egress-refusal egress-ipv6 \
    egress-networks; do
    check "doctor: $name" finds "$name" ok
done
check 'the set-uid program was tried' finds seal-setuid ok /usr/bin/su
listing >"$place/after"
check 'nothing is left of it' diff "$place/before" "$place/after"

# With the sandbox just being made.
# shellcheck disable=SC2119
doctor >"$place/interrupted" 2>&1 </dev/null &
wait_until 240 compgen -G "/run/user/$id/umwelt-*.sock" >/dev/null
pkill --signal TERM --uid "$id" --full "^$place/umwelt install doctor"
wait $! && status=0 || status=$?
said=$(cat "$place/interrupted")
check 'an interrupted one says so' said 143 'nothing is left behind'
listing >"$place/after"
check 'and leaves nothing' diff "$place/before" "$place/after"

# broken COMMAND NAME=VALUE…: the doctor where a shell command has changed the host, for its eyes only.
broken() {
    local change=$1
    shift
    export -f as
    export user home place
    # shellcheck disable=SC2016  # expanded there
    unshare --mount --propagation private bash -euc "$change"'
        as "$user" "$@" "$place/umwelt" install doctor --quick' broken "$@"
}
data=$home/.local/share/umwelt
cp "$data/install.json" "$place/"
echo 'image = "umwelt-none"' >"$place/umwelt.toml"
chmod 0644 "$home/.local/lib/umwelt/umwelt" "$place/umwelt.toml"
run broken "mount --bind /dev/null /usr/sbin/nft
    mount -t tmpfs -o size=1m,mode=0700,uid=$id,gid=$id none $data
    install -m 0600 -o $user $place/install.json $data/
    mount --bind $place/umwelt.toml $home/.config/umwelt/umwelt.toml
    " CONTAINER_HOST=ssh://example.org
chmod 0755 "$home/.local/lib/umwelt/umwelt"
check 'a broken host is found so' said 1 'unset CONTAINER_HOST' 'umwelt-install image' 'nftables'
check 'a remote podman is found' finds podman fail CONTAINER_HOST
check 'a missing nft is found' finds nft warn 'not found'
check 'a missing image is found' finds image fail umwelt-none
check 'a full disk is found' grep -qE '^disk +fail .*umwelt.s data' <<<"$said"
check 'a hook that cannot be executed is found' finds installed fail 'cannot be executed'

# The ids of a user count when podman makes the user namespace.
as "$user" podman system migrate
install -d -o "$user" "$home/bin"
printf '%s\n' '#!/bin/sh' "/usr/bin/podman \"\$@\" | sed 's/\"Version\": \"[0-9.]*\"/\"Version\": \"3.4.4\"/'" >"$home/bin/podman"
chmod 0755 "$home/bin/podman"
echo 'image = 3' >"$place/umwelt.toml"
run broken "
    mount --bind $place/umwelt.toml $home/.config/umwelt/umwelt.toml
    for file in /etc/subuid /etc/subgid; do mount --bind /dev/null \$file; done
    " PATH="$home/bin:/usr/bin:/bin"
as "$user" podman system migrate
check 'an old podman is found' finds podman fail 3.4.4 'too old'
check 'a mistake in the configuration is found' finds config fail umwelt.toml 'line 1' image
check 'missing ids are found' finds subids fail '0 user and 0 group ids'
check 'with the command that adds them' said 1 "usermod --add-subuids" "$user"
rm -r "${home:?}/bin"

# ---- gone again ----

limit=1200 as "$user" "$bin/umwelt-run" --workspace "$home/project" >"$place/log" 2>&1 </dev/null &
wait_until 240 grep -q 'is ready for' "$place/log"
run as "$user" "$bin/umwelt-ctl" exec "$home/project" -- id -u
check 'commands run in a sandbox' said 0 "$id"
run as "$user" "$bin/umwelt-install" remove
check 'nothing is removed while it runs' said 1 'sandboxes run' "$home/project"
check 'the program is still there' test -x "$home/.local/lib/umwelt/umwelt"
as "$user" "$bin/umwelt-ctl" stop "$home/project"
wait

# What stays of a sandbox is what it did.
rm -f "$home"/.local/share/umwelt/journal-*
run as "$user" "$bin/umwelt-install" remove
check 'it is removed' said 0 'program   removed'
listing >"$place/after"
check 'the home is as it was' diff "$place/never" "$place/after"
images >"$place/after-images"
check 'and so are the images' diff "$place/never-images" "$place/after-images"

exit "$failed"
