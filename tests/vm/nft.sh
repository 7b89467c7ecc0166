#!/bin/bash
# umwelt-nft-hook under a real rootless podman: it runs, its rules are in force and are read back,
# and a container does not start where it fails. What is in the network is tests/nft's business.
# shellcheck disable=SC2317  # functions are called by check, run and trap
set -euo pipefail
# shellcheck source=tests/vm/checks.bash
. "$(dirname "$(readlink -f "$0")")/checks.bash"

# Gateway 192.0.2.1 with ports 53, 3128 and 1080; one direct target.
golden=$here/../data/nft/one-target.json
network=tv-nft
image=umwelt:latest
system_hooks=/usr/share/containers/oci/hooks.d
other_hooks=/etc/containers/oci/hooks.d
had_system_hooks=$([[ ! -e $system_hooks ]] || echo yes)
had_other_hooks=$([[ ! -e $other_hooks ]] || echo yes)

folder=$(as dev mktemp -d /home/dev/tv-nft.XXXXXX)
# Open to all, as the hook starts nft without the right to pass through private folders; and not in
# /run, where nothing is executed.
public=$(mktemp -d /opt/tv-nft.XXXXXX)
chmod 0755 "$public"
clean_up() {
    as dev podman rm --force --ignore --time=0 tv-nft-gateway tv-nft-sandbox >/dev/null || true
    as dev podman network rm --force "$network" >/dev/null || true
    rm -f "$system_hooks/tv-nft.json" "$other_hooks/tv-nft.json"
    [[ -n $had_system_hooks ]] || rmdir --ignore-fail-on-non-empty "$system_hooks" || true
    [[ -n $had_other_hooks ]] || rmdir --ignore-fail-on-non-empty "$other_hooks" || true
    rm -rf "$folder" "$public"
}
trap clean_up EXIT

# The hook may read what belongs to the user and the user's group: both exist inside.
install -o dev -g dev -m 0755 "$binary" "$folder/umwelt"
install -o dev -g dev -m 0600 "$golden" "$folder/rules.json"
as dev mkdir -m 0700 "$folder/hooks"
digest=$(sha256sum "$golden" | cut -d' ' -f1)

# hook_file [PATH [NFT [TIMEOUT [DIGEST]]]]: what umwelt-run writes for podman (src/nft/oci.rs).
hook_file() {
    local path=${1-$folder/umwelt} nft=${2-/usr/sbin/nft} timeout=${3-30}
    jq -n --arg path "$path" --arg rules "$folder/rules.json" --arg digest "${4-$digest}" \
        --arg nft "$nft" --argjson timeout "$timeout" '{
            version: "1.0.0",
            hook: {path: $path, timeout: $timeout, env: ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
                args: ["umwelt-nft-hook", "--ruleset", $rules, "--digest", $digest, "--nft", $nft]},
            when: {always: true}, stages: ["createContainer"]}' >"$folder/hooks/umwelt-nft.json"
    chown dev: "$folder/hooks/umwelt-nft.json"
    rm -f "$folder/said"
}

# Flags of the floor that matter to a hook and to a network.
floor=(--rm --pull=never --userns=keep-id --cap-drop=all --read-only --security-opt=no-new-privileges
    --network="$network" --no-hosts --http-proxy=false)

# sandbox OPTIONS… IMAGE COMMAND…, with our directory of hooks the only one.
sandbox() {
    as dev podman --hooks-dir="$folder/hooks" run "${floor[@]}" \
        --annotation=run.oci.hooks.stderr="$folder/said" "$@"
}

# Tries each of KIND:ADDRESS:PORT, and prints what became of it, one a line.
probe='
import errno, socket, sys
for word in sys.argv[1:]:
    kind, address, port = word.split("|")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM) as s:
        s.settimeout(10)
        try:
            s.connect((address, int(port)))
            s.send(b"x")
            print(word, "ok")
        except TimeoutError:
            print(word, "silent")
        except OSError as error:
            print(word, errno.errorcode[error.errno])
'
services='
import socket, time
held = [socket.create_server(("", port)) for port in (53, 1080, 3128, 8443)]
held.append(socket.create_server(("::", 443), family=socket.AF_INET6))
print("ready", flush=True)
time.sleep(3600)
'
start_gateway() {
    as dev podman network create --subnet 192.0.2.0/24 --gateway 192.0.2.254 --ipv6 \
        --subnet 2001:db8:1::/64 --gateway 2001:db8:1::fe "$network" &&
        as dev podman run --detach --name tv-nft-gateway --pull=never --network="$network" \
            --ip 192.0.2.1 --ip6 2001:db8:1::1 "$image" python3 -c "$services" &&
        wait_until 240 gateway_is_ready
}
gateway_is_ready() { [[ $(as dev podman logs tv-nft-gateway 2>/dev/null) == *ready* ]]; }

# ---- it works ----

run start_gateway
check 'a network and a gateway to test with' said 0 ''

words=('tcp|192.0.2.1|3128' 'tcp|192.0.2.1|8443' 'udp|192.0.2.1|8443' 'tcp|192.0.2.254|53'
    'udp|198.51.100.1|53' 'tcp|2001:db8:1::1|443' 'udp|2001:db8:1::1|53')
hook_file
run sandbox "$image" python3 -c "$probe" "${words[@]}"
check 'with the hook, the gateway can be reached at its ports and nothing else' said 0 \
    'tcp|192.0.2.1|3128 ok' 'tcp|192.0.2.1|8443 ECONNREFUSED' 'udp|192.0.2.1|8443 EPERM' \
    'tcp|192.0.2.254|53 ECONNREFUSED' 'udp|198.51.100.1|53 EPERM' \
    'tcp|2001:db8:1::1|443 ECONNREFUSED' 'udp|2001:db8:1::1|53 EPERM'

run as dev podman run "${floor[@]}" "$image" python3 -c "$probe" "${words[@]}"
check 'without it, it is open' said 0 'tcp|192.0.2.1|8443 ok' 'udp|192.0.2.1|8443 ok' \
    'tcp|2001:db8:1::1|443 ok'

# ---- it is read back from the host, by the user ----

start_sandbox() {
    as dev podman "$@" run --detach --name tv-nft-sandbox "${floor[@]}" "$image" sleep 3600
}
# shellcheck disable=SC2016  # expanded by that shell
read_back() {
    as dev sh -c 'exec python3 -c "
import os, sys
os.dup2(os.pidfd_open(int(sys.argv[1])), 3)
# It may have been 3 already, and close-on-exec then.
os.set_inheritable(3, True)
os.execv(sys.argv[2], sys.argv[2:])
" "$(podman inspect --format "{{.State.Pid}}" tv-nft-sandbox)" "$@"' sh \
        "$folder/umwelt" nft-hook --read-back --ruleset "$folder/rules.json" --digest "$digest" --nft /usr/sbin/nft
}
remove_sandbox() { as dev podman rm --force --ignore --time=0 tv-nft-sandbox >/dev/null; }

run start_sandbox --hooks-dir="$folder/hooks"
check 'a sandbox that stays' said 0 ''
run as dev podman exec tv-nft-sandbox python3 -c "$probe" 'udp|198.51.100.1|53' 'tcp|192.0.2.1|8443'
check 'a command in it meets the rules' said 0 EPERM ECONNREFUSED
run read_back
check 'its rules are read back by the user, with what they counted' said 0 '"digest":' \
    '{"address":"198.51.100.1","protocol":17,"port":53,"packets":1,' '"address":"192.0.2.1","protocol":6,"port":8443'
remove_sandbox

run start_sandbox
run read_back
check 'a sandbox without the hook is found by reading back' said 1 'nft could not list the table'
remove_sandbox

# ---- it fails closed ----

# refused NAME WORD…: the sandbox does not start, and the hook has said each of the words.
refused() {
    local name=$1
    shift
    run sandbox "$image" echo started
    check "no sandbox where $name" did_not_start "$@"
}
did_not_start() {
    local word text
    [[ $status != 0 && $said != *started* ]] || { echo "status $status: $said"; return 1; }
    text=$(cat "$folder/said" 2>/dev/null) || true
    for word in "$@"; do
        [[ $text == *"$word"* ]] || { echo "the hook did not say \"$word\" but: $text"; echo "$said"; return 1; }
    done
}
# stand_in LINE: a program in place of nft.
stand_in() {
    printf '#!/bin/sh\n%s\n' "$1" >"$public/nft"
    chmod 0755 "$public/nft"
}

hook_file "$folder/umwelt" /nonexistent/nft
refused 'nft is missing' 'cannot start "/nonexistent/nft"' 'hint: install nftables'
# shellcheck disable=SC2016  # expanded by the stand-in
stand_in 'kill -9 "$PPID"'
hook_file "$folder/umwelt" "$public/nft"
refused 'the hook is killed'
stand_in 'exit 0'
hook_file "$folder/umwelt" "$public/nft"
refused 'nft does nothing' 'not understood as JSON of nft'
stand_in 'exec sleep 600'
hook_file "$folder/umwelt" "$public/nft" 3
refused 'the hook takes too long'
hook_file "$folder/umwelt" /usr/sbin/nft 30 "${digest//[0-7]/8}"
refused 'the ruleset is not the one that was meant' 'is not the one that was meant'

install -o dev -g dev -m 0644 "$binary" "$folder/plain"
hook_file "$folder/plain"
refused 'the hook is not executable'

head -c 2000 "$golden" >"$folder/rules.json"
hook_file "$folder/umwelt" /usr/sbin/nft 30 "$(sha256sum "$folder/rules.json" | cut -d' ' -f1)"
refused 'half a ruleset is there' 'is none: not understood'
install -o dev -g dev -m 0600 "$golden" "$folder/rules.json"

# podman skips the file of a hook that is not there, without a word. So the hook alone is not enough.
hook_file "$folder/gone"
run start_sandbox --hooks-dir="$folder/hooks"
run read_back
check 'a hook that podman skipped is found by reading back' said 1 'nft could not list the table'
remove_sandbox

# ---- the hooks of the system ----

# mark_hook DIRECTORY NAME: a hook of the system, which leaves a file.
mark_hook() {
    mkdir -p "$1"
    jq -n --arg file "$folder/mark-$2" '{version: "1.0.0", when: {always: true},
        hook: {path: "/usr/bin/touch", args: ["touch", $file]}, stages: ["createRuntime"]}' >"$1/tv-nft.json"
}
marks() { find "$folder" -name 'mark-*' -printf '%f\n' -delete | sort | xargs; }

mark_hook "$system_hooks" system
mark_hook "$other_hooks" other
hook_file
run as dev podman run "${floor[@]}" "$image" true
check 'without the option podman takes hooks from the one default directory' said 0 ''
check 'and from no other' test "$(marks)" = mark-system
run sandbox "$image" true
check 'naming a directory leaves the default out' test "$status $(marks)" = '0 '
# What oci::hooks_dir_args gives where nothing is configured.
run as dev podman --hooks-dir="$system_hooks" --hooks-dir="$folder/hooks" run "${floor[@]}" "$image" \
    python3 -c "$probe" 'udp|198.51.100.1|53'
check 'with both named, our hook runs' said 0 EPERM
check 'and so does that of the system' test "$(marks)" = mark-system

exit "$failed"
