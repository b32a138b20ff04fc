#!/usr/bin/env bash
# What the driver does, on the cluster of up.sh: packing, sharing, failure and recovery.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

DEMOS=(packing sharing recovery)
WANTED=()
DEMO_NAMESPACE=mig-demo

usage() {
    cat <<EOF
Usage: demo.sh [--name NAME] [DEMO...]
  --name NAME  of the cluster (default $CLUSTER)
Demos, all of them without an argument:
  packing   pods of several sizes are packed; one that does not fit waits and gets its slice later
  sharing   two containers of a pod, and two pods, share one slice
  recovery  a node's plugin is killed: running pods keep their slices, waiting ones get theirs after
EOF
}

show() {
    echo
    echo "== $*"
}

apply() {
    kube apply --namespace "$DEMO_NAMESPACE" --filename "$KIND_DIR/demos/$1.yaml"
}

pods() {
    kube get pods --namespace "$DEMO_NAMESPACE" --output wide
    kube get mignodes
}

running() {
    kube wait --namespace "$DEMO_NAMESPACE" --for=condition=Ready --timeout=90s "$@"
}

waiting_reason() {
    local events
    for ((tries = 30; tries > 0; tries--)); do
        events=$(kube get events --namespace "$DEMO_NAMESPACE" \
            --field-selector involvedObject.kind=ResourceClaim,type=Warning)
        [ -n "$events" ] && break
        sleep 1
    done
    echo "$events"
}

# A fresh namespace before each demo and none after it.
clear_namespace() {
    kube delete namespace "$DEMO_NAMESPACE" --ignore-not-found --wait --timeout=120s
}

packing() {
    show "seven small slices fill a GPU, two halves the other one of the A100 node"
    apply packing-small
    running pod/small-{1,2,3,4,5,6,7}
    apply packing-halves
    running pod/half-1 pod/half-2
    pods
    show "a pod that needs a whole GPU waits, and its claim says why"
    apply packing-whole
    waiting_reason
    show "the halves leave: the waiting pod gets its slice"
    kube delete pod --namespace "$DEMO_NAMESPACE" half-1 half-2
    running pod/whole
    pods
}

sharing() {
    show "one slice for two containers of a pod, another one for two pods"
    apply sharing
    running pod/two-containers pod/first pod/second
    for container in left right; do
        echo "-- two-containers/$container"
        kube exec --namespace "$DEMO_NAMESPACE" two-containers --container "$container" -- ls /dev/nvidia-caps
    done
    for pod in first second; do
        echo "-- $pod"
        kube exec --namespace "$DEMO_NAMESPACE" "$pod" -- ls /dev/nvidia-caps
    done
}

recovery() {
    show "a pod runs with its slice"
    apply recovery
    running pod/before
    local node plugin
    node=$(kube get pod before --namespace "$DEMO_NAMESPACE" --output 'jsonpath={.spec.nodeName}')
    plugin=$(kube get pods --namespace "$NAMESPACE" --output name \
        --selector app.kubernetes.io/component=kubelet-plugin --field-selector "spec.nodeName=$node")
    show "the plugin of $node is killed; the pod runs on"
    kube delete --namespace "$NAMESPACE" "$plugin" --grace-period=0 --force
    running pod/before
    show "a pod that asks now runs as soon as the plugin is back"
    apply recovery-after
    running pod/after
    pods
}

while [ $# -gt 0 ]; do
    case $1 in
    --name) CLUSTER=$(value "$@"); shift 2 ;;
    -h | --help) usage; exit 0 ;;
    packing | sharing | recovery) WANTED+=("$1"); shift ;;
    *) usage_error "unknown argument '$1'" ;;
    esac
done
valid_cluster
[ ${#WANTED[@]} -gt 0 ] || WANTED=("${DEMOS[@]}")
require_docker
require kubectl

for demo in "${WANTED[@]}"; do
    echo "===== $demo"
    clear_namespace
    kube create namespace "$DEMO_NAMESPACE"
    "$demo"
done
clear_namespace
show "all slices are gone"
kube get mignodes
