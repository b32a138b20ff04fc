#!/usr/bin/env bash
# A Kubernetes cluster in Docker whose workers have simulated GPUs, with the driver installed.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

KUBERNETES=1.36
ALLOCATOR=controller
NODE_IMAGE=
PRINT_CONFIG=
# One worker for each: every node has other hardware.
GPUS=(A100-SXM4-40GB H100-80GB-HBM3 B200)
DEFAULT_GPUS="${GPUS[*]}"

usage() {
    cat <<EOF
Usage: up.sh [options]
  --kubernetes VERSION  1.34, 1.35, 1.36 or 1.37 (default $KUBERNETES)
  --allocator MODE      controller or scheduler: who allocates the slices (default $ALLOCATOR)
  --gpus A,B,...        GPUs of each worker, products that 'mig-sim nvml products' lists; one worker for
                        each (default ${GPUS[*]})
  --name NAME           of the cluster (default $CLUSTER)
  --node-image IMAGE    of the nodes, instead of the one for the version
  --print-config        print the configuration for kind and stop
Each worker has two simulated GPUs of its product.
EOF
}

# The images of kind v0.33.0.
node_image() {
    case $KUBERNETES in
    1.34) echo kindest/node:v1.34.11 ;;
    1.35) echo kindest/node:v1.35.8 ;;
    1.36) echo kindest/node:v1.36.4 ;;
    1.37) echo kindest/node:v1.37.0 ;;
    *) usage_error "--kubernetes '$KUBERNETES' is not one of 1.34, 1.35, 1.36, 1.37" ;;
    esac
}

# What 1.34 and 1.35 have as alpha and later versions have on: `--allocator scheduler` and pods that
# ask by `limits` need it. The controller mode needs none of it.
feature_gates() {
    case $KUBERNETES in
    1.34 | 1.35)
        echo featureGates:
        for gate in DRADeviceTaints DRAExtendedResource DRAPartitionableDevices ResourceHealthStatus; do
            echo "  $gate: true"
        done
        ;;
    esac
}

config() {
    cat <<EOF
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
name: $CLUSTER
EOF
    feature_gates
    cat <<EOF
containerdConfigPatches:
  # Devices reach containers through CDI.
  - |-
    [plugins."io.containerd.grpc.v1.cri"]
      enable_cdi = true
nodes:
  - role: control-plane
    image: $NODE_IMAGE
EOF
    for _ in "${GPUS[@]}"; do
        cat <<EOF
  - role: worker
    image: $NODE_IMAGE
EOF
    done
}

# The chart's values. Kind calls its workers <cluster>-worker, -worker2, -worker3; the images' ids
# make an upgrade roll the pods when an image was built anew under the same tag.
values() {
    cat <<EOF
allocator: $ALLOCATOR
controller:
  podAnnotations: {image: "$1"}
kubeletPlugin:
  podAnnotations: {image: "$2"}
simulated:
  enabled: true
  nodes:
EOF
    local number=
    for gpu in "${GPUS[@]}"; do
        echo "    $CLUSTER-worker$number: [$gpu, $gpu]"
        number=$((${number:-1} + 1))
    done
}

image_id() {
    docker image inspect --format '{{.Id}}' "dra-driver-nvidia-mig/$1:$version"
}

while [ $# -gt 0 ]; do
    case $1 in
    --kubernetes) KUBERNETES=$(value "$@"); shift 2 ;;
    --allocator) ALLOCATOR=$(value "$@"); shift 2 ;;
    --gpus)
        gpus=$(value "$@")
        IFS=, read -ra GPUS <<<"$gpus"
        shift 2
        ;;
    --name) CLUSTER=$(value "$@"); shift 2 ;;
    --node-image) NODE_IMAGE=$(value "$@"); shift 2 ;;
    --print-config) PRINT_CONFIG=yes; shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage_error "unknown argument '$1'" ;;
    esac
done
valid_cluster
case $ALLOCATOR in
controller | scheduler) ;;
*) usage_error "--allocator '$ALLOCATOR' is neither controller nor scheduler" ;;
esac
for gpu in "${GPUS[@]}"; do
    [ -f "$REPOSITORY/sim/nvml/fixtures/$gpu.json" ] ||
        usage_error "--gpus: no product '$gpu'; there are: $(cd "$REPOSITORY/sim/nvml/fixtures" && echo *.json | sed 's/\.json//g')"
done
[ ${#GPUS[@]} -gt 0 ] || usage_error "--gpus needs a product"
default_image=$(node_image)
NODE_IMAGE=${NODE_IMAGE:-$default_image}
if [ -n "$PRINT_CONFIG" ]; then
    config
    exit 0
fi

require_docker
require kind kubectl helm

chart="$REPOSITORY/deploy/helm/dra-driver-nvidia-mig"
version=$(sed -n 's/^appVersion: *//p' "$chart/Chart.yaml")
echo "building the images"
"$REPOSITORY/hack/images.sh" controller simulator
controller_id=$(image_id controller)
simulator_id=$(image_id simulator)

if kind get clusters 2>/dev/null | grep -qx "$CLUSTER"; then
    echo "cluster $CLUSTER exists already; only the driver is installed anew"
else
    config | kind create cluster --config - --wait 3m
fi
kind load docker-image --name "$CLUSTER" \
    "dra-driver-nvidia-mig/controller:$version" "dra-driver-nvidia-mig/simulator:$version"

# The plugin mounts directories of its node.
kube create namespace "$NAMESPACE" --dry-run=client --output yaml | kube apply --filename -
kube label namespace "$NAMESPACE" --overwrite pod-security.kubernetes.io/enforce=privileged
values "$controller_id" "$simulator_id" |
    helm upgrade --install mig "$chart" --kube-context "kind-$CLUSTER" \
        --namespace "$NAMESPACE" --values - --wait --timeout 3m
for ((tries = 60; tries > 0; tries--)); do
    nodes=$(kube get mignodes --output name | wc -l)
    [ "$nodes" -ge ${#GPUS[@]} ] && break
    sleep 1
done
kube get mignodes
[ "$nodes" -ge ${#GPUS[@]} ] || die "only $nodes of ${#GPUS[@]} nodes show their GPUs"
# The demos ask for profiles of these.
if [ "${GPUS[*]}" = "$DEFAULT_GPUS" ]; then
    echo "Ready. Next: $KIND_DIR/demo.sh --name $CLUSTER"
else
    echo "Ready. Next: the first pod of docs/first-pod.md, with kubectl --context kind-$CLUSTER"
fi
