"""hack/images.sh builds what the chart asks for; Docker itself is not needed to see that."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections import Counter
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hack.bench.node.node import OF_THE_IMAGE
from hack.cluster.chart import REPOSITORY, pod_spec, render, version
from hack.release.packages import CONSTRAINTS, IMAGES, requirements
from tests.deploy.images.imagefiles import DOCKERFILE, installed, pinned, stages
from tests.helpers.waiting import PATIENCE

SCRIPT = REPOSITORY / "hack/images.sh"


REGISTRY = "registry.example:5000/gpu"


def images(*arguments: str, path: str = "/usr/bin:/bin") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": path},
        timeout=PATIENCE,
    )


def commands(*arguments: str) -> list[list[str]]:
    done = images("--dry-run", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return [line.removeprefix("+ ").split() for line in done.stdout.splitlines()]


def test_it_pushes_the_images_that_the_chart_asks_for() -> None:
    asked = set()
    for simulated in (False, True):
        values = {"image": {"registry": REGISTRY}, "simulated": {"enabled": simulated}}
        for component in ("controller", "kubelet-plugin"):
            spec = pod_spec(render(values), component)
            asked |= {c["image"] for c in [*spec.get("initContainers", []), *spec["containers"]]}
    run = commands("--registry", REGISTRY, "--push")
    assert {words[-1] for words in run if words[:2] == ["docker", "push"]} == asked
    built = {words[words.index("--tag") + 1]: words for words in run if words[1] == "build"}
    assert built.keys() == asked
    for image, words in built.items():
        assert words[words.index("--target") + 1] == image.rpartition("/")[2].partition(":")[0]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--push",), "--push needs --registry"),
        (("--kind",), "--kind needs a value"),
        (("all",), "unknown argument 'all'"),
        (("--archive", "/nowhere"), "--archive: '/nowhere' is no folder"),
    ],
)
def test_a_bad_call_is_refused_and_named(arguments: tuple[str, ...], named: str) -> None:
    done = images(*arguments)
    assert done.returncode == 2
    assert named in done.stderr


def test_a_release_packs_what_it_built_on_the_base_that_was_given(tmp_path: Path) -> None:
    base = f"python:3.11@sha256:{'1' * 64}"
    made = commands("--base", base, "--archive", str(tmp_path), *IMAGES)
    builds = [words for words in made if words[1] == "build"]
    assert [words[words.index("--build-arg") + 1] for words in builds] == [
        f"PYTHON_IMAGE={base}"
    ] * len(IMAGES)
    saved = [words[words.index("--output") + 1] for words in made if words[1] == "save"]
    assert saved == [f"{tmp_path}/{image}-{version()}.tar" for image in IMAGES]


def test_the_plugins_environment_is_that_of_the_benchmark_and_grpc_knows_it() -> None:
    stage = DOCKERFILE.read_text().partition(" AS kubelet-plugin\n")[2].partition("\nFROM ")[0]
    environment = dict(re.findall(r"^ENV (\w+)=(\S+)$", stage, re.MULTILINE))
    assert environment == OF_THE_IMAGE
    told = {"GRPC_EXPERIMENTS": f"{environment['GRPC_EXPERIMENTS']},-no_such_thing"}
    use = "import grpc; grpc.insecure_channel('unix:/nowhere').close()"
    command = [sys.executable, "-c", use]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=told)
    assert re.findall(r"Unknown experiment: (\S+)", done.stderr) == ["no_such_thing"]


# -- packages of the images: pinned by hash, no more than the programs need, and of a bounded size


MOST_MB = {"controller": 40, "kubelet-plugin": 27, "simulator": 27}
"""Of the packages of an image, without compiled Python: as much as their source once more."""


def needed(extra: str) -> dict[str, str]:
    """The packages of an extra of ours with all that they need in turn; the version of each."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    waiting = [*project["dependencies"], *project["optional-dependencies"][extra]]
    found: dict[str, str] = {}
    while waiting:
        name = canonicalize_name(Requirement(waiting.pop()).name)
        if name not in found:
            package = distribution(name)
            found[name] = package.version
            waiting += [each for each in package.requires or () if wanted(Requirement(each))]
    return found


def wanted(need: Requirement) -> bool:
    return need.marker is None or need.marker.evaluate({"extra": ""})


@pytest.mark.parametrize(("image", "extra"), IMAGES.items())
def test_an_image_has_what_its_program_needs_in_the_versions_of_the_constraints(
    image: str, extra: str
) -> None:
    """If this fails: make hashes."""
    lines = CONSTRAINTS.read_text().splitlines()
    versions = {str(canonicalize_name(n)): v for n, _, v in (each.split("=") for each in lines)}
    packages = pinned(image)
    assert packages.keys() == needed(extra).keys()
    assert packages == {name: versions[name] for name in packages}


@pytest.mark.parametrize("image", IMAGES)
def test_every_package_of_an_image_is_pinned_by_hash_and_by_nothing_of_a_host(image: str) -> None:
    comment, *lines = requirements(image).read_text().splitlines()
    assert comment.startswith("# Made by make hashes")
    package = r"[\w.-]+==[\w.]+ \\\n(    --hash=sha256:[0-9a-f]{64}( \\)?\n)+"
    assert re.fullmatch(f"({package})+", "\n".join([*lines, ""]))


@pytest.mark.parametrize("image", IMAGES)
def test_the_dockerfile_installs_the_list_and_nothing_without_a_hash(image: str) -> None:
    assert stages()[image]["packages"] == image
    text = (REPOSITORY / "deploy/Dockerfile").read_text()
    installed = re.findall(r"\bpip .*\binstall (.*) \\", text)
    assert installed == [f"--requirement {each}.txt" for each in IMAGES]
    for setting in ("PIP_REQUIRE_HASHES=1", "PIP_NO_DEPS=1", "PIP_ONLY_BINARY=:all:"):
        assert setting in text


@pytest.mark.parametrize("stage", MOST_MB)
def test_the_packages_of_an_image_are_small(stage: str) -> None:
    sizes: Counter[str] = Counter()
    for file in installed(stage):
        sizes[file.parts[0]] += Path(str(file.locate())).stat().st_size
    assert sizes.total() / 1e6 < MOST_MB[stage], sizes
