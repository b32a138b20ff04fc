"""Environment of the plugin's image."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from hack.bench.node.node import OF_THE_IMAGE
from tests.deploy.images.imagefiles import DOCKERFILE

_USE = "import grpc; grpc.insecure_channel('unix:/nowhere').close()"


def environment() -> dict[str, str]:
    """Variables that the stage of the plugin sets."""
    stage = DOCKERFILE.read_text().partition(" AS kubelet-plugin\n")[2].partition("\nFROM ")[0]
    return dict(re.findall(r"^ENV (\w+)=(\S+)$", stage, re.MULTILINE))


def test_the_benchmark_runs_the_plugin_with_the_environment_of_its_image() -> None:
    assert environment() == OF_THE_IMAGE


def test_grpc_knows_what_the_image_tells_it() -> None:
    told = {"GRPC_EXPERIMENTS": f"{environment()['GRPC_EXPERIMENTS']},-no_such_thing"}
    command = [sys.executable, "-c", _USE]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env=os.environ | told
    )
    assert re.findall(r"Unknown experiment: (\S+)", done.stderr) == ["no_such_thing"]
