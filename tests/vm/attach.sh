#!/bin/bash
# Mounts that come to a running sandbox, and go again, by `umwelt-run --mount-helper` alone: what
# only a real podman, or root on the host, can show.
# shellcheck disable=SC2317  # functions are called by check, run and trap
set -euo pipefail
# shellcheck source=tests/vm/checks.bash
. "$(dirname "$(readlink -f "$0")")/checks.bash"

folder=$(as dev mktemp -d /home/dev/tv-attach.XXXXXX)
project=$folder/project
sid=$(printf %s "$project" | sha256sum | cut -c1-8)
umwelt=(as dev XDG_CONFIG_HOME="$folder/config" "$folder/umwelt")
clean_up() {
    "${umwelt[@]}" ctl stop "$project" >/dev/null 2>&1 ||
        "${umwelt[@]}" ctl stop --hard "$project" || true
    wait
    umount "$project" "$folder/outer/mounted" "$folder/fixed" 2>/dev/null || true
    rm -rf "$folder" "/run/user/1000/umwelt-attach-$sid" "/run/user/1000/umwelt-attach-$sid.lock"
}
trap clean_up EXIT

# The project is a whole tmpfs of the host: by its look a scratch place, but for the host's table.
install -D -o dev -m 0755 "$binary" "$folder/umwelt"
as dev mkdir -p "$project" "$folder"/{config/umwelt,base/tree,granted,other,outer/mounted,fixed}
mount -t tmpfs -o size=1m,uid=1000,gid=1000,mode=0755 project "$project"
mount -t tmpfs -o size=1m outer "$folder/outer/mounted"
mount -t tmpfs -o ro,size=1m,uid=1000,mode=0755 fixed "$folder/fixed"
as dev sh -c "cat >$folder/config/umwelt/umwelt.toml" <<END
session_prefix = "umwelt-attach"
[[mounts]]
type = "bind"
path = "$folder/base"
END
for name in base base/tree granted other; do as dev sh -c "echo $name >$folder/$name/file"; done

limit=1200 "${umwelt[@]}" run --workspace "$project" >"$folder/log" 2>&1 </dev/null &
wait_until 240 grep -q 'is ready for' "$folder/log"
pid=$(as dev podman inspect --format '{{.State.Pid}}' "umwelt-attach-$sid")

inside() { "${umwelt[@]}" ctl exec "$project" -- bash -c "$1"; }

# helper OPERATION PATH [SOURCE [NAME=VALUE…]]: one operation by the helper, as umwelt-run asks for
# it; prints the answer. IDENTITY: the file that is expected to be there.
cat >"$folder/helper.py" <<'END'
import json, os, socket, subprocess, sys, time
exe, pid, operation, path, source, *more = sys.argv[1:]
found = os.stat(os.environ.get("IDENTITY", source))
words = {"path": path, "device": found.st_dev, "inode": found.st_ino}
if operation == "attach":
    words |= {"source": source, "is_file": os.path.isfile(source), "read_only": False}
else:
    words |= {"made_mount_point": False}
for word in more:
    words |= json.loads(word)
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
request = json.dumps({"operations": [{operation: words}]}).encode()
socket.send_fds(ours, [request], [os.pidfd_open(int(pid))])
os.dup2(theirs.fileno(), 3)
begin = time.monotonic()
result = subprocess.run([exe, "run", "--mount-helper"], pass_fds=[3], stdout=subprocess.PIPE)
print(f"{operation}: {(time.monotonic() - begin) * 1000:.0f} ms", file=open(sys.argv[0] + ".times", "a"))
print(json.dumps(json.loads(result.stdout)["answers"][0]))
END
chown dev "$folder/helper.py"
helper() {
    local operation=$1 path=$2 source=${3-$2}
    shift 2
    shift || true
    as dev IDENTITY="${identity-$source}" python3 "$folder/helper.py" "$folder/umwelt" "$pid" "$operation" \
        "$path" "$source" "$@"
}
made='{"made_mount_point": true}'
read_only='{"read_only": true}'
table() { cat "/proc/$pid/mountinfo"; }
is_mounted() { table | cut -d' ' -f5 | grep -qxF "$1"; }
is_not_mounted() { ! is_mounted "$1"; }

# ---- something that runs all the time: two ends of one connection, and a count of its rounds ----

cat >"$project/rounds.py" <<'END'
import os, socket, time
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
peer, _ = server.accept()
rounds = 0
while True:
    client.sendall(b"x")
    assert peer.recv(1) == b"x"
    rounds += 1
    with open("/tmp/rounds.new", "w") as out:
        print(os.getpid(), rounds, file=out)
    os.rename("/tmp/rounds.new", "/tmp/rounds")
    time.sleep(0.05)
END
inside "setsid python3 $project/rounds.py >/tmp/rounds.log 2>&1 </dev/null & wait_for=\$!
    until [ -e /tmp/rounds ]; do kill -0 \$wait_for || exit 1; sleep 0.1; done"
before=$(inside 'cat /tmp/rounds')

# ---- attach ----

new=$folder/granted
run helper attach "$new"
check 'a directory is attached' said 0 '"done": {"made_mount_point": true}'
run inside "cat $new/file && echo written >$new/new && stat -c %u:%g:%a $new"
check 'it is seen and written inside' said 0 granted 1000:1000
check 'and written on the host' grep -q written "$new/new"
check 'nosuid, nodev, private' grep -qE " $new rw,nosuid,nodev[a-z,]* - " "/proc/$pid/mountinfo"

run helper attach "$folder/base/tree" "$folder/base/tree"
check 'a grant lies over a read-only base bind' said 0 '"done": {"made_mount_point": false}'
run inside "echo written >$folder/base/tree/new"
check 'and can be written there' said 0
run inside "echo written >$folder/base/new"
check 'while the base around it cannot' said 1 'Read-only file system'

run helper attach "$folder/deep/er/other" "$folder/other" "$read_only"
check 'missing directories are made in the scratch home' said 0 '"done": {"made_mount_point": true}'
run inside "cat $folder/deep/er/other/file && echo no >$folder/deep/er/other/new"
check 'a read-only grant can be read and not written' said 1 other 'Read-only file system'
run inside "stat -c %U:%a $folder/deep && touch $folder/deep/mine"
check 'the directories made belong to the user inside' said 0 dev:755
check 'and do not exist on the host' test ! -e "$folder/deep"

run helper attach "$folder/key" "$folder/granted/file" "$read_only"
check 'a single file is attached' said 0 '"done": {"made_mount_point": true}'
run inside "cat $folder/key"
check 'and seen' said 0 granted

# ---- what is left to a recreate, or refused ----

run helper attach "$project/missing/below" "$folder/other"
check 'nothing is made in a tmpfs of the host' said 0 not_live 'cannot be made there'
check 'the project is as it was' test ! -e "$project/missing"
run helper attach /opt/missing "$folder/other"
check 'nothing is made in the image' said 0 not_live 'cannot be made there'

# Into a directory of the agent's own, which stands in the home inside only.
planted=/home/dev/tv-planted
inside "ln -s $folder/base $planted"
run helper attach "$planted" "$folder/other"
check 'a link at the mount point is not followed' said 0 not_live 'a symbolic link'
run helper attach "$planted/tree" "$folder/other"
check 'nor one on the way' said 0 not_live 'a symbolic link'

identity=$folder/other run helper attach "$folder/swapped" "$folder/granted"
check 'a source that was replaced is told' said 0 changed 'not what it was when it was granted'
as dev ln -s other "$folder/aside"
run helper attach "$folder/aside" "$folder/aside"
check 'a source that is a link by now, too' said 0 changed 'not what it was when it was granted'
run helper attach "$folder/outer" "$folder/outer"
check 'a source with something mounted below is left alone' said 0 not_live 'mounted below it on the host'
run helper attach "$folder/fixed" "$folder/fixed"
check 'what cannot be as it was granted is taken away again' said 0 not_live 'read-only on the host'
check 'and leaves no mount' is_not_mounted "$folder/fixed"
run inside "ls -d $folder/fixed"
check 'and no mount point' said 2 'No such file'

# ---- detach ----

run inside "cd $new && exec setsid sleep 1000 >/dev/null 2>&1 </dev/null &
    until pgrep -fx 'sleep 1000' >/dev/null; do sleep 0.1; done"
run helper detach "$new" "$new" "$made"
check 'what is in use stays, and its user is named' said 0 not_live 'in use by: ' '(sleep 1000)'
check 'the mount is still there' is_mounted "$new"
inside 'pkill -x sleep; while pgrep -x sleep; do sleep 0.1; done' >/dev/null
run helper detach "$new" "$new" "$made"
check 'what nothing uses is detached' said 0 '"done"'
check 'the mount is gone' is_not_mounted "$new"
run inside "ls -d $new"
check 'and so is its mount point' said 2 'No such file'
check 'the host has all of it' test -e "$new/new"

run helper detach "$folder/key" "$folder/granted/file" "$made"
check 'a file is detached' said 0 '"done"'
run helper detach "$folder/base/tree" "$folder/base/tree"
check 'the grant over the base bind is detached' said 0 '"done"'
run inside "cat $folder/base/tree/file && echo no >$folder/base/tree/again"
check 'and the base is seen again, read-only' said 1 base/tree 'Read-only file system'
identity=$folder/other run helper detach "$folder/base"
check 'what is not the thing granted is not detached' said 0 not_live 'not what is mounted'
run helper detach "$folder/base"
check 'a mount that podman made is detached' said 0 '"done"'
run inside "ls -A $folder/base"
check 'and nothing of it is left' said 0

# ---- and all the time ----

after=$(inside 'cat /tmp/rounds; cat /tmp/rounds.log')
went_on() { [[ ${before% *} == "${after% *}" && ${after#* } -gt ${before#* } ]] || echo "$before; $after"; }
run went_on
check 'what ran keeps its pid and its connection' test -z "$said"
check 'pid 1 is the same one' test -d "/proc/$pid"
check 'and umwelt-run has seen no restart' test "$(grep -c 'is ready for' "$folder/log")" == 1

sed 's/^/# /' "$folder/helper.py.times"
exit "$failed"
