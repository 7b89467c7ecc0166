# shellcheck shell=bash
# Completions of umwelt for bash, made from the help texts by tests/completions.rs.

_umwelt() {
    local program=${1##*/} word=${COMP_WORDS[COMP_CWORD]} at
    local first='' second='' third='' words='' next=''
    for ((at = 1; at < COMP_CWORD; at++)); do
        [[ ${COMP_WORDS[at]} != -* ]] || continue
        if [[ -z $first ]]; then first=${COMP_WORDS[at]}
        elif [[ -z $second ]]; then second=${COMP_WORDS[at]}
        else third=${COMP_WORDS[at]} && break; fi
    done
    case "$program $first" in
        'umwelt-mcp '*) words='--workspace --help --version' ;;
        'umwelt-run '*) words='--workspace --detach --help --version' ;;
        'umwelt-ctl status') words='--json --help --version' ;;
        'umwelt-ctl stop') words='--all --hard --help --version' ;;
        'umwelt-ctl exec') words='--cwd --interactive --tty --help --version' ;;
        'umwelt-ctl shell') words='--cwd --help --version' ;;
        'umwelt-ctl list') words='--json --help --version' ;;
        'umwelt-ctl config') words='--json --help --version' ;;
        'umwelt-ctl plan') words='--json --help --version' ;;
        'umwelt-ctl grant') words='--ro --rw --file --persist --json --help --version' ;;
        'umwelt-ctl revoke') words='--json --help --version' ;;
        'umwelt-ctl trust') words='--diff --yes --revoke --help --version' ;;
        'umwelt-ctl egress') words='--port --path --method --no-inspect --private --json --help --version' next='list add remove verify' ;;
        'umwelt-ctl log') words='--follow --lines --json --help --version' ;;
        'umwelt-ctl audit') words='--follow --lines --denied --summary --json --html --help --version' ;;
        'umwelt-ctl wt') words='--branch --force --json --yes --help --version' next='add rm list accept' ;;
        'umwelt-ctl help') words='--help --version' next='status stop exec shell list config plan grant revoke trust egress log audit wt' ;;
        'umwelt-ctl ') words='status stop exec shell list config plan grant revoke trust egress log audit wt help --help --version' ;;
        'umwelt-nft-hook '*) words='--ruleset --digest --nft --read-back --help --version' ;;
        'umwelt-install install') words='--prefix-bin --no-image --image-from --no-egress --egress --help --version' ;;
        'umwelt-install status') words='--json --help --version' ;;
        'umwelt-install remove') words='--purge --help --version' ;;
        'umwelt-install image') words='--with-build --packages --from-packages --from --help --version' ;;
        'umwelt-install ca') words='--help --version' next='rotate' ;;
        'umwelt-install client') words='--merge --yes --skill --help --version' next='opencode claude codex goose vscode generic' ;;
        'umwelt-install doctor') words='--json --fix-commands --quick --help --version' ;;
        'umwelt-install help') words='--help --version' next='install status remove image ca client doctor' ;;
        'umwelt-install ') words='install status remove image ca client doctor help --help --version' ;;
        'umwelt-init '*) words='--check-egress --help --version' ;;
        'umwelt-gateway '*) words='--policy --ca-cert --ca-key --roots --audit --listen --proxy-port --socks-port --dns-port --resolver --supervised --workspace --threads --share-at --audit-size --audit-keep --help --version' ;;
    esac
    [[ -z $second ]] || next=''
    case "$program $first $second" in
        'umwelt-ctl egress list') words='--json --help --version' ;;
        'umwelt-ctl egress add') words='--port --path --method --no-inspect --private --json --help --version' next='https tcp' ;;
        'umwelt-ctl egress remove') words='--port --path --json --help --version' next='https tcp' ;;
        'umwelt-ctl egress verify') words='--json --help --version' ;;
        'umwelt-ctl wt add') words='--branch --help --version' ;;
        'umwelt-ctl wt rm') words='--force --help --version' ;;
        'umwelt-ctl wt list') words='--json --help --version' ;;
        'umwelt-ctl wt accept') words='--yes --help --version' ;;
        'umwelt-install ca rotate') words='--help --version' ;;
    esac
    COMPREPLY=()
    # Other words are files, or workspaces, by -o default.
    if [[ $word == -* || -z $first ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
    elif [[ -z $third ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$next" -- "$word")
    fi
}

complete -o default -F _umwelt umwelt-mcp umwelt-run umwelt-ctl umwelt-nft-hook umwelt-install umwelt-init umwelt-gateway
