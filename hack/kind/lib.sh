# Shared by up.sh, demo.sh and down.sh; sourced, not run.
# shellcheck shell=bash

# shellcheck source-path=SCRIPTDIR source=../options.sh
. "$(dirname "${BASH_SOURCE[0]}")/../options.sh"

KIND_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck disable=SC2034 # read by the scripts that source this file
REPOSITORY=$(cd "$KIND_DIR/../.." && pwd)
CLUSTER=mig
# shellcheck disable=SC2034
NAMESPACE=mig-dra-driver

die() {
    echo "${0##*/}: $*" >&2
    exit 1
}

valid_cluster() {
    [[ $CLUSTER =~ ^[a-z0-9]([a-z0-9-]*[a-z0-9])?$ ]] ||
        usage_error "--name '$CLUSTER' must be lower-case letters, digits and '-'"
}

# Every program that is missing is named at once.
require() {
    local missing=()
    for program in "$@"; do
        command -v "$program" >/dev/null || missing+=("$program")
    done
    [ ${#missing[@]} -eq 0 ] || die "not installed: ${missing[*]}"
}

require_docker() {
    command -v docker >/dev/null ||
        die "Docker is not installed; the nodes of a kind cluster are its containers"
    docker info >/dev/null 2>&1 ||
        die "Docker is installed, but its daemon does not answer ('docker info' fails)"
}

kube() {
    kubectl --context "kind-$CLUSTER" "$@"
}
