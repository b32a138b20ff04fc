"""The kind scripts, as far as they go without Docker: what they call is a stand-in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from hack.cluster.chart import REPOSITORY, render
from sim.nvml.products import load_product, product_names
from tests.helpers.waiting import PATIENCE

KIND = REPOSITORY / "hack/kind"
BASICS = ("bash", "sh", "dirname", "cat", "sed", "grep", "wc", "sleep", "env")

STAND_IN = """#!/bin/sh
program=${0##*/}
echo "$program $*" >> "$CALLS"
case "$program $*" in
"docker image inspect "*) echo sha256:0123 ;;
"kind create "*) cat > "$CALLS.config" ;;
"helm upgrade "*) cat > "$CALLS.values" ;;
"kubectl "*"get mignodes --output name") printf 'one\\ntwo\\nthree\\n' ;;
"kubectl "*"get pods --namespace mig-dra-driver"*) echo pod/plugin ;;
"kubectl "*"get events"*) echo a-reason ;;
"kubectl "*"jsonpath"*) echo mig-worker ;;
"docker info") exit "${DOCKER_INFO:-0}" ;;
esac
"""


class Terminal:
    """Runs scripts with nothing but the named programs on the path."""

    def __init__(self, home: Path, *programs: str) -> None:
        self.calls = home / "calls"
        self.calls.touch()
        self._path = home / "bin"
        self._path.mkdir()
        for name in BASICS:
            for directory in os.environ["PATH"].split(":"):
                if os.access(Path(directory) / name, os.X_OK):
                    (self._path / name).symlink_to(Path(directory) / name)
                    break
        for name in programs:
            (self._path / name).write_text(STAND_IN)
            (self._path / name).chmod(0o755)

    def run(self, script: str, *arguments: str, **environment: str) -> tuple[int, str]:
        """The exit status and what was printed."""
        done = subprocess.run(
            [KIND / script, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
            env={"PATH": str(self._path), "CALLS": str(self.calls), **environment},
        )
        return done.returncode, done.stdout + done.stderr

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines()


@pytest.fixture
def equipped(tmp_path: Path) -> Terminal:
    return Terminal(tmp_path, "docker", "kind", "kubectl", "helm")


def config(terminal: Terminal, *arguments: str) -> dict[str, Any]:
    status, text = terminal.run("up.sh", "--print-config", *arguments)
    assert status == 0, text
    parsed: dict[str, Any] = yaml.safe_load(text)
    return parsed


def test_the_scripts_are_clean() -> None:
    scripts = [str(each) for each in (*KIND.glob("*.sh"), *KIND.parent.glob("*.sh"))]
    command = [str(Path(sys.executable).with_name("shellcheck")), "--external-sources", *scripts]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("script", "arguments", "complaint"),
    [
        ("up.sh", ["--kubernetes", "1.33"], "'1.33' is not one of 1.34"),
        ("up.sh", ["--kubernetes"], "--kubernetes needs a value"),
        ("up.sh", ["--allocator", "both"], "'both' is neither"),
        ("up.sh", ["--name", "a b"], "--name 'a b'"),
        ("up.sh", ["--gpus", "H200,H9000"], "no product 'H9000'; there are: A100-SXM4-40GB"),
        ("up.sh", ["--gpus"], "--gpus needs a value"),
        ("up.sh", ["--workers"], "unknown argument '--workers'"),
        ("demo.sh", ["dance"], "unknown argument 'dance'"),
        ("demo.sh", ["--name"], "--name needs a value"),
        ("down.sh", ["--name", "X"], "--name 'X'"),
        ("down.sh", ["now"], "unknown argument 'now'"),
    ],
)
def test_a_bad_argument_is_named_before_anything_happens(
    script: str, arguments: list[str], complaint: str, equipped: Terminal
) -> None:
    status, text = equipped.run(script, *arguments)
    assert status == 2
    assert complaint in text
    assert equipped.called() == []


def test_up_builds_creates_loads_and_installs_in_this_order(equipped: Terminal) -> None:
    status, text = equipped.run("up.sh", "--name", "lab", "--kubernetes", "1.34")
    assert status == 0, text
    steps = [call for call in equipped.called() if not call.startswith("kubectl")]
    beginnings = ["docker info", "docker info", "docker build", "docker build"]
    beginnings += ["docker image", "docker image", "kind get", "kind create"]
    beginnings += ["kind load", "helm upgrade"]
    assert [" ".join(call.split()[:2]) for call in steps] == beginnings
    made = yaml.safe_load(equipped.calls.with_name("calls.config").read_text())
    assert made["name"] == "lab"
    builds = [call for call in steps if call.startswith("docker build")]
    [load] = [call for call in steps if call.startswith("kind load")]
    targets = [call.split("--target ")[1].split()[0] for call in builds]
    dockerfile = (REPOSITORY / "deploy/Dockerfile").read_text()
    assert all(f" AS {target}\n" in dockerfile for target in targets)

    values = yaml.safe_load(equipped.calls.with_name("calls.values").read_text())
    objects = render(values)
    images = {
        container["image"]
        for each in objects
        if each["kind"] in {"Deployment", "DaemonSet"}
        for container in each["spec"]["template"]["spec"]["containers"]
    }
    built = {call.split("--tag ")[1].split()[0] for call in builds}
    assert images == built == set(load.split()[-2:])
    products = list(values["simulated"]["nodes"].values())
    assert list(values["simulated"]["nodes"]) == ["lab-worker", "lab-worker2", "lab-worker3"]
    assert len({gpus[0] for gpus in products}) == 3
    assert {gpu for gpus in products for gpu in gpus} <= set(product_names())


@pytest.mark.parametrize("file", sorted((KIND / "demos").iterdir()), ids=lambda file: file.stem)
def test_the_manifests_are_valid_and_ask_for_what_the_workers_have(file: Path) -> None:
    up = (KIND / "up.sh").read_text()
    (gpus,) = (line for line in up.splitlines() if line.startswith("GPUS=("))
    profiles = {
        f"mig-{profile.name.replace('+', '.')}"
        for gpu in gpus.removeprefix("GPUS=(").removesuffix(")").split()
        for profile in load_product(gpu).gi_profiles
    }
    for each in yaml.safe_load_all(file.read_text()):
        kubernetes_validate.validate(each, "1.34", strict=True)
        spec = each["spec"].get("spec", each["spec"])
        for request in spec.get("devices", {}).get("requests", []):
            assert request["exactly"]["deviceClassName"] in profiles
