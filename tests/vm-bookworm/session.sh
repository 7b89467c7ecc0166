#!/bin/bash
# The main job on Debian 12, with its podman 4.3 and crun 1.8, for a user who has never seen umwelt:
# install, doctor, a sandbox over MCP with its seal, a grant, and a network with a rule. Run as root
# in the machine of UMWELT_VM_SUITE=bookworm scripts/vm.
# shellcheck disable=SC2317  # functions are called by check, run and trap
set -euo pipefail
# shellcheck source=tests/vm/checks.bash
. "$(dirname "$(dirname "$(readlink -f "$0")")")/vm/checks.bash"

user=umwelt-old
place=
hide_iptables() { mv /usr/sbin/iptables /usr/sbin/iptables.away; }
show_iptables() { [[ ! -L /usr/sbin/iptables.away ]] || mv /usr/sbin/iptables.away /usr/sbin/iptables; }
clean_up() {
    show_iptables
    as "$user" "$place/umwelt" ctl stop --hard "$home/project" >/dev/null 2>&1 || true
    loginctl disable-linger "$user" 2>/dev/null || true
    systemctl stop "user@$id.service" "user-$id.slice" 2>/dev/null || true
    [[ -z ${servers-} ]] || kill "${servers[@]}" 2>/dev/null || true
    ip addr del 192.0.2.7/32 dev lo 2>/dev/null || true
    rm -rf "$place"
    wait
    userdel --force --remove "$user" >/dev/null 2>&1 || true
}

id -u "$user" >/dev/null 2>&1 || useradd --create-home --uid 1931 "$user"
id=$(id -u "$user")
home=$(getent passwd "$user" | cut -d: -f6)
trap clean_up EXIT
place=$(mktemp -d /opt/umwelt-old.XXXXXX)
chmod 0755 "$place"
install -m 0755 "$binary" "$place/umwelt"
loginctl enable-linger "$user"
wait_until 240 test -S "/run/user/$id/bus"

doctor() { as "$user" "$place/umwelt" install doctor --quick; }
run as "$user" podman --version
check 'the stage: this is podman 4.3' said 0 'version 4.3.'
# shellcheck disable=SC2119
run doctor
check 'the storage driver that copies images is told' said 1 'vfs: every start' 'driver = "overlay"'
as "$user" podman system reset --force >/dev/null 2>&1
as "$user" sh -c "mkdir -p ~/.config/containers && printf '%s\n' '[storage]' 'driver = \"overlay\"' >~/.config/containers/storage.conf"
check 'an image for the user' import_small "$user" "$place/root"
run as "$user" "$place/umwelt" install install --no-image
check 'umwelt is installed' said 0 'copied to' 'imported: '
hide_iptables
run doctor
show_iptables
check 'what a network lacks is told' said 0 'need iptables here'
run doctor
check 'the host is found fit' said 0
fine() { [[ $said != *' fail '* ]] && grep -qE '^storage +ok +overlay' <<<"$said" && grep -qE '^netavark +ok' <<<"$said"; }
check 'with its storage and what a network needs' fine

# ---- over MCP ----

as "$user" mkdir "$home/project" "$home/other"
as "$user" sh -c "echo shown >~/other/file"
cp "$(dirname "$(readlink -f "$0")")/session.py" "$place/"
run as "$user" python3 "$place/session.py" "$home/.local/bin/umwelt-mcp" "$home/project" "$home/other"
printf '%s\n' "$said"
[[ $status == 0 ]] || { echo "not ok the session, status $status"; failed=1; }
# What crun 1.8 leaves out is in place, as seen from the host.
limits() {
    local scope
    scope=$(dirname "$(find "/sys/fs/cgroup/user.slice/user-$id.slice" -path '*/libpod-*.scope/command-*' -print -quit)")
    [[ $(cat "$scope"/{memory,pids}.max "$scope/memory.swap.max") == $'4294967296\n1024\n0' ]] || { grep . "$scope"/*.max; return 1; }
}

# ---- with a network of one rule ----

ip addr add 192.0.2.7/32 dev lo
servers=()
for port in 8443 9443; do
    python3 -m http.server --bind 192.0.2.7 --directory "$place/root" "$port" >/dev/null 2>&1 </dev/null &
    servers+=($!)
done
cat >"$home/project/.umwelt.toml" <<'END'
[egress]
enabled = true
registries = []
[[egress.tcp]]
host = "192.0.2.7"
port = 8443
[[egress.expect]]
url = "tcp://192.0.2.7:8443"
verdict = "allow"
[[egress.expect]]
url = "tcp://192.0.2.7:9443"
verdict = "deny"
[[egress.expect]]
url = "https://other.example.org/"
verdict = "deny"
END
chown "$user:" "$home/project/.umwelt.toml"
run as "$user" "$place/umwelt" ctl trust --yes "$home/project"
check 'the file of the project is accepted' said 0 accepted
limit=1200 as "$user" "$home/.local/bin/umwelt-run" --workspace "$home/project" >"$place/log" 2>&1 </dev/null &
wait_until 240 grep -q 'is ready for' "$place/log"
check 'the caps hold where the commands are' limits
as "$user" XDG_RUNTIME_DIR="/run/user/$id" systemctl --user daemon-reload
check 'and still when systemd has read its units again' limits
check 'both servers are there' curl -sS --output /dev/null http://192.0.2.7:8443/ http://192.0.2.7:9443/
run as "$user" "$home/.local/bin/umwelt-ctl" egress verify "$home/project"
check 'what the rule allows is reached, and nothing else' said 0 192.0.2.7:8443 192.0.2.7:9443
run as "$user" "$home/.local/bin/umwelt-ctl" stop "$home/project"
check 'it stops' said 0
run as "$user" podman ps --all --quiet
check 'no container is left' [ -z "$said" ]
exit "$failed"
