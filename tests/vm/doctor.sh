#!/bin/bash
# The doctor with a real podman: on a good host each check passes, each one fires when what it looks
# at is broken, its commands repair delegation, and it leaves nothing, also when it is interrupted.
# shellcheck disable=SC2317  # functions are called by check, run and trap
set -euo pipefail
# shellcheck source=tests/vm/checks.bash
. "$(dirname "$(readlink -f "$0")")/checks.bash"

user=umwelt-doctor
drop_in=/etc/systemd/system/user@1919.service.d
# What the commands of the doctor write.
repair=/etc/systemd/system/user@.service.d/delegate.conf
place=
clean_up() {
    loginctl disable-linger "$user" 2>/dev/null || true
    systemctl stop "user@$id.service" "user-$id.slice" 2>/dev/null || true
    rm -rf "$drop_in" "$repair" "$place"
    rmdir --ignore-fail-on-non-empty "${repair%/*}" 2>/dev/null || true
    systemctl daemon-reload
    userdel --force --remove "$user" >/dev/null 2>&1 || true
}

id -u "$user" >/dev/null 2>&1 || useradd --create-home --uid 1919 "$user"
id=$(id -u "$user")
home=$(getent passwd "$user" | cut -d: -f6)
trap clean_up EXIT
place=$(mktemp -d /opt/umwelt-doctor.XXXXXX)
chmod 0755 "$place"
install -m 0755 "$binary" "$place/umwelt"
manager=/sys/fs/cgroup/user.slice/user-$id.slice/user@$id.service

# Only pids is delegated to this user.
mkdir -p "$drop_in"
printf '[Service]\nDelegate=\nDelegate=pids\n' >"$drop_in/00-few.conf"
rm -f "$repair"
systemctl daemon-reload
loginctl enable-linger "$user"
wait_until 60 test -S "/run/user/$id/bus"

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
has_all() {
    local name
    for name in cpu memory pids; do grep -qw "$name" "$manager/cgroup.controllers" || return 1; done
}

check 'the stage: this user lacks controllers' bash -c "! grep -qw cpu $manager/cgroup.controllers"
run doctor --fix-commands
check 'missing delegation is found' said 1 "not delegated to uid $id" 'systemctl restart'
check 'nothing has been run by the doctor' test ! -e "$repair"
# As a person would: those of this check alone.
commands=$(awk '/^#/ { ours = /^# cgroups:/ } ours && !/^#/' <<<"$said")
check 'its commands run' bash -euxc "$commands"
wait_until 60 test -S "/run/user/$id/bus"
check 'and delegate the controllers, for good' has_all

check 'an image for the user' import_small "$user" "$place/root"
run as "$user" "$place/umwelt" install install --no-image
check 'umwelt is installed' said 0 'imported: '
check 'the stage: podman has made what it keeps' as "$user" podman ps

# What podman keeps for itself in a home is podman's.
listing() {
    find "$home" \( -path "$home/.local/share/containers" -o -path "$home/.cache" \) -prune -o -printf '%P %y %m %s %l\n' | sort
    find /tmp "/run/user/$id" -maxdepth 1 -user "$user" -name '*umwelt*'
    as "$user" podman ps --all --quiet
    as "$user" podman network ls --format '{{.Name}}'
}
listing >"$place/before"

run doctor
check 'a good host is found fit' said 0
for name in user places podman netavark kernel cgroups subids seccomp image nft disk installed keep-id hook sandbox \
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
run broken "
    for file in /etc/subuid /etc/subgid; do mount --bind /dev/null \$file; done
    " PATH="$home/bin:/usr/bin:/bin"
as "$user" podman system migrate
check 'an old podman is found' finds podman fail 3.4.4 'too old'
check 'missing ids are found' finds subids fail '0 user and 0 group ids'
check 'with the command that adds them' said 1 "usermod --add-subuids" "$user"

exit "$failed"
