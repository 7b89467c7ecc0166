# shellcheck shell=bash
# Where sandboxes can be started: on this host if it qualifies, else in the machine of scripts/vm.
# To be sourced, with $repo set; find_place then sets $there, the words before a command there.
#
# UMWELT_VM=PATH   the scripts/vm of another checkout: its machine runs, and is used as it is

: "${repo:?}"
vm=${UMWELT_VM:-$repo/scripts/vm}
there=()

say() { echo "$(basename "$0"): $*" >&2; }

die() {
    say "$*"
    exit 1
}

# Prints the comment at the top of the script and ends, where its first word asks for that.
help_if_asked() {
    [[ ${1-} == -h || ${1-} == --help ]] || return 0
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    exit 0
}

# Installs what is missing of PROGRAM:PACKAGE pairs, or prints the one command for it.
need_programs() {
    local pair missing=()
    for pair; do
        command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
    done
    need_packages "${missing[@]}"
}

need_packages() {
    local log=$repo/target/packages.log
    [[ $# -gt 0 ]] || return 0
    if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
        die "missing packages; run: sudo apt-get install $*"
    fi
    say "installing $*"
    mkdir -p "$repo/target"
    { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends "$@"; } \
        >"$log" 2>&1 </dev/null || die "apt-get failed: $(tail -n 3 "$log")"
}

# Makes target/clients/venv with the official Python SDK.
need_python_sdk() {
    local venv=$repo/target/clients/venv
    "$venv/bin/python" -c 'import mcp' 2>/dev/null && return 0
    need_programs python3:python3
    python3 -c 'import ensurepip, venv' 2>/dev/null || need_packages python3-venv
    say 'installing the Python package mcp'
    mkdir -p "$repo/target/clients"
    python3 -m venv --clear "$venv" && "$venv/bin/python" -m pip install --quiet mcp
}

# Prints why no sandbox can be started on this very host; nothing if one can.
native_obstacle() {
    local controllers missing
    ((EUID != 0)) || { echo 'root has no rootless podman' && return; }
    [[ -n ${XDG_RUNTIME_DIR-} ]] || { echo 'XDG_RUNTIME_DIR is not set' && return; }
    controllers=/sys/fs/cgroup/user.slice/user-$EUID.slice/user@$EUID.service/cgroup.controllers
    [[ -r $controllers ]] || { echo 'it has no cgroup v2 with a systemd instance of the user' && return; }
    missing=$(printf '%s\n' cpu memory pids | grep -vxF -f <(tr ' ' '\n' <"$controllers") | xargs)
    [[ -z $missing ]] || { echo "controllers are not delegated: $missing" && return; }
    command -v podman >/dev/null || { echo 'podman is not installed' && return; }
    podman image exists umwelt:latest || echo 'podman has no image umwelt:latest'
}

# Decides, and has everything there that a sandbox needs; $1 is the binary.
find_place() {
    local binary=$1 obstacle
    obstacle=$(native_obstacle)
    if [[ -z $obstacle ]]; then
        use_host "$binary"
    else
        say "not on this host, but in the machine of scripts/vm: $obstacle"
        there=("$vm" run)
        [[ -z ${UMWELT_VM-} ]] || return 0
        UMWELT_VM_BINARY=$binary "$vm" up || die 'the machine does not start'
    fi
}

# The names of the binary come from a folder in target/, before any that are installed.
use_host() {
    local bin=$repo/target/native name
    mkdir -p "$bin"
    for name in umwelt{,-mcp,-run,-ctl,-init,-install}; do
        ln -sfT "$1" "$bin/$name"
    done
    there=(env "PATH=$bin:$PATH")
}

in_machine() { [[ ${there[0]} == "$vm" ]]; }

# Puts files and folders into the folder NAME of the user's cache there; prints its path.
put_there() {
    local name=.cache/$1
    shift
    if in_machine; then
        "${there[@]}" rm -rf "$name"
        "$vm" push "$@" "$name/"
    else
        rm -rf "$HOME/${name:?}"
        mkdir -p "$HOME/$name"
        cp -a "$@" "$HOME/$name/"
    fi
    # shellcheck disable=SC2016  # expanded there
    "${there[@]}" sh -c 'echo "$HOME/$1"' sh "$name"
}
