#!/usr/bin/env bash
# Deletes the cluster that up.sh made, with everything in it.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

while [ $# -gt 0 ]; do
    case $1 in
    --name) CLUSTER=$(value "$@"); shift 2 ;;
    -h | --help) echo "Usage: down.sh [--name NAME] (default $CLUSTER)"; exit 0 ;;
    *) usage_error "unknown argument '$1'" ;;
    esac
done
valid_cluster
require_docker
require kind
kind delete cluster --name "$CLUSTER"
