#!/bin/sh
# A stand-in for podman: it writes down what it is called with, and keeps images as files that
# hold their id and one label. Files named broken, no-registry, ps.json and wait change what it does.
set -u
place=$HOME/podman
mkdir -p "$place/images"
echo "$*" >>"$place/log"
[ ! -e "$place/broken" ] || { echo "Error: broken" >&2; exit 125; }
file_of() { printf '%s/images/%s' "$place" "$(printf %s "${1#localhost/}" | tr '/:' '__')"; }
label=
tag=
last=
id_of() { sha256sum | cut -c1-64; }
case ${1-} in
    image)
        file=$(file_of "${3-}")
        if [ "$2" = exists ]; then
            [ -e "$file" ] || exit 1
        else
            for last; do :; done
            read -r id key value <"$(file_of "$last")" || true
            printf '[{"Id": "%s", "Labels": ' "$id"
            if [ -n "$key" ]; then printf '{"%s": "%s"}}]\n' "$key" "$value"; else echo 'null}]'; fi
        fi
        ;;
    import)
        input=
        shift
        while [ $# -gt 0 ]; do
            case $1 in
                --change) case $2 in LABEL*) label=${2#LABEL } ;; esac; shift ;;
                --quiet) ;;
                *) if [ -z "$input" ]; then input=$1; else tag=$1; fi ;;
            esac
            shift
        done
        [ "$input" = - ] && input=/dev/stdin
        cp "$input" "$place/imported.tar"
        echo "$(id_of <"$place/imported.tar") ${label%%=*} ${label#*=}" >"$(file_of "$tag")"
        ;;
    build)
        if [ -e "$place/no-registry" ]; then
            echo 'Error: no registry answers' >&2
            exit 125
        fi
        while [ $# -gt 0 ]; do
            case $1 in
                --tag) tag=$2 ;;
                --label) label=$2 ;;
            esac
            last=$1
            shift
        done
        ls "$last" >"$place/context"
        echo "$(date +%N | id_of) ${label%%=*} ${label#*=}" >"$(file_of "$tag")"
        ;;
    rmi)
        for last; do :; done
        grep -l "^$last" "$place"/images/* | xargs rm
        ;;
    ps) [ ! -e "$place/ps.json" ] || cat "$place/ps.json" ;;
    info) cat "$place/info.json" ;;
    --version) echo 'podman version 5.4.2' ;;
    run)
        if [ -e "$place/wait" ]; then
            echo begun >"$place/begun"
            read -r _ <"$place/go" || true
        fi
        cat "$place/run"
        ;;
    inspect) echo 1 ;;
esac
