#!/usr/bin/env bash
# Builds the images of deploy/Dockerfile with Docker or else buildah; pushes them, packs them into
# archives, or loads them into a kind cluster.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=options.sh
. "$(dirname "${BASH_SOURCE[0]}")/options.sh"

REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
TARGETS=()
REGISTRY=
KIND_CLUSTER=
BASE=
ARCHIVE=
PUSH=
DRY_RUN=

usage() {
    cat <<USAGE
Usage: images.sh [options] [TARGET...]
  --registry PREFIX  before the images' names, as in the chart's image.registry
  --base IMAGE       Python's image that they stand on, in place of deploy/Dockerfile's own:
                     by digest for a release
  --archive FOLDER   pack each into FOLDER/TARGET-VERSION.tar (docker-archive)
  --kind CLUSTER     load them into the nodes of a kind cluster
  --push             push them to the registry
  --dry-run          print the commands only
Targets, all of them without an argument: controller kubelet-plugin simulator
USAGE
}

run() {
    echo "+ $*"
    [ -n "$DRY_RUN" ] || "$@"
}

while [ $# -gt 0 ]; do
    case $1 in
    --registry) REGISTRY=$(value "$@"); shift 2 ;;
    --base) BASE=$(value "$@"); shift 2 ;;
    --archive) ARCHIVE=$(value "$@"); shift 2 ;;
    --kind) KIND_CLUSTER=$(value "$@"); shift 2 ;;
    --push) PUSH=yes; shift ;;
    --dry-run) DRY_RUN=yes; shift ;;
    -h | --help) usage; exit 0 ;;
    controller | kubelet-plugin | simulator) TARGETS+=("$1"); shift ;;
    *) usage_error "unknown argument '$1'" ;;
    esac
done
[ ${#TARGETS[@]} -gt 0 ] || TARGETS=(controller kubelet-plugin simulator)
[ -z "$PUSH" ] || [ -n "$REGISTRY" ] || usage_error "--push needs --registry"
[ -z "$ARCHIVE" ] || [ -d "$ARCHIVE" ] || usage_error "--archive: '$ARCHIVE' is no folder"
version=$(sed -n 's/^appVersion: *//p' "$REPOSITORY/deploy/helm/dra-driver-nvidia-mig/Chart.yaml")

builder=docker
if [ -z "$DRY_RUN" ] && ! docker info >/dev/null 2>&1; then
    if [ -n "$KIND_CLUSTER" ] || ! command -v buildah >/dev/null; then
        echo "${0##*/}: Docker is not installed, or its daemon does not answer ('docker info' fails);" \
            "without --kind, buildah on the PATH does as well" >&2
        exit 1
    fi
    builder=buildah
fi
images=()
for target in "${TARGETS[@]}"; do
    image="${REGISTRY:+${REGISTRY%/}/}dra-driver-nvidia-mig/$target:$version"
    run "$builder" build --file "$REPOSITORY/deploy/Dockerfile" --target "$target" --tag "$image" \
        ${BASE:+--build-arg "PYTHON_IMAGE=$BASE"} "$REPOSITORY"
    images+=("$image")
    if [ -n "$ARCHIVE" ]; then
        file=$ARCHIVE/$target-$version.tar
        run rm -f "$file"
        case $builder in
        docker) run docker save --output "$file" "$image" ;;
        buildah) run buildah push "$image" "docker-archive:$file:$image" ;;
        esac
    fi
done
[ -z "$KIND_CLUSTER" ] || run kind load docker-image --name "$KIND_CLUSTER" "${images[@]}"
if [ -n "$PUSH" ]; then
    for image in "${images[@]}"; do
        run "$builder" push "$image"
    done
fi
