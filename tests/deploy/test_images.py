"""hack/images.sh: builds what the chart asks for; Docker itself is not needed to see that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hack.cluster.driver.chart import REPOSITORY, pod_spec, render
from tests.waiting import PATIENCE

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


def test_the_script_is_clean() -> None:
    checker = Path(sys.executable).with_name("shellcheck")
    command = [str(checker), "--external-sources", str(SCRIPT), str(SCRIPT.parent / "options.sh")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


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


def test_it_loads_what_it_built_into_kind() -> None:
    build, load = commands("--kind", "mig", "simulator")
    image = build[build.index("--tag") + 1]
    assert load == ["kind", "load", "docker-image", "--name", "mig", image]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--push",), "--push needs --registry"),
        (("--kind",), "--kind needs a value"),
        (("all",), "unknown argument 'all'"),
    ],
)
def test_a_bad_call_is_refused_and_named(arguments: tuple[str, ...], named: str) -> None:
    done = images(*arguments)
    assert done.returncode == 2
    assert named in done.stderr


def test_without_docker_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "docker").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "docker").chmod(0o755)
    done = images(path=f"{tmp_path}:/usr/bin:/bin")
    assert done.returncode == 1
    assert "Docker is not installed, or its daemon does not answer" in done.stderr
