"""What the chart starts exists: flags, init scripts, and the files of the image."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from controller.cli import main as controller
from dra.common.resources import Obj
from hack.cluster.chart import REPOSITORY, find, pod_spec, render
from kubeletplugin.__main__ import main as kubeletplugin
from sim.__main__ import main as simulator
from sim.nvml.machine import Machine
from tests.deploy.images.imagefiles import DOCKERFILE, stages
from tests.helpers.waiting import PATIENCE


def arguments(container: Obj) -> list[str]:
    """The arguments after the program's name, with its environment filled in."""
    command = [*container["command"][3:], *container["args"]]
    return [re.sub(r"\$\(([A-Z_]+)\)", r"\1", each) for each in command]


def parsed(command: click.Command, given: list[str]) -> Obj:
    """The options as the program sees them; its work is not begun."""
    return command.make_context("program", given).params


OF_THE_POD = {
    "controller": {"identity": "mig-dra-driver/POD_NAME", "leader_elect": True},
    "kubelet-plugin": {"node_name": "NODE_NAME", "host_root": Path("/host")},
}


@pytest.mark.parametrize("component", OF_THE_POD)
def test_what_the_chart_itself_sets_reaches_the_program(component: str) -> None:
    (container,) = pod_spec(render(), component)["containers"]
    command = controller if component == "controller" else kubeletplugin
    assert OF_THE_POD[component].items() <= parsed(command, arguments(container)).items()


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
@pytest.mark.parametrize("allocator", ["controller", "scheduler"])
def test_both_programs_know_every_choice_of_the_schema(level: str, allocator: str) -> None:
    objects = render({"logLevel": level, "allocator": allocator})
    for component, command in (("controller", controller), ("kubelet-plugin", kubeletplugin)):
        (container,) = pod_spec(objects, component)["containers"]
        assert parsed(command, arguments(container))["log_level"] == level


def test_the_directories_that_the_plugin_uses_are_mounted_at_their_own_path() -> None:
    spec = pod_spec(render({"kubeletPlugin": {"kubeletRoot": "/srv/kubelet"}}), "kubelet-plugin")
    (container,) = spec["containers"]
    options = parsed(kubeletplugin, arguments(container))
    paths = {
        each["name"]: each["hostPath"]["path"] for each in spec["volumes"] if "hostPath" in each
    }
    seen = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    for name in ("registry", "pod-resources", "plugin", "cdi"):
        assert seen[name] == paths[name]
    assert seen["registry"] == str(options["kubelet_root"] / "plugins_registry")
    assert seen["pod-resources"] == str(options["kubelet_root"] / "pod-resources")
    # The journal's place, when no other is named.
    assert options["state_dir"] is None
    assert seen["plugin"] == str(options["kubelet_root"] / "plugins" / options["driver_name"])
    assert seen["cdi"] == str(options["cdi_root"])
    assert (paths["host"], seen["host"]) == ("/", str(options["host_root"]))


def script(container: Obj, replaced: dict[str, str], **environment: str) -> None:
    """Runs an init container's script, with paths of this machine for those of the container."""
    *shell, text = container["command"]
    for old, new in replaced.items():
        text = text.replace(old, new)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(
        [*shell, text],
        check=True,
        cwd=REPOSITORY,
        env={"PATH": path, **environment},
        timeout=PATIENCE,
    )


@pytest.mark.parametrize(
    ("value", "roots"),
    [
        ("/", ["/"]),
        ("/run/nvidia/driver", ["/run/nvidia/driver"]),
        ("auto", ["/"]),
        ("auto", ["/run/nvidia/driver"]),
        ("auto", ["/run/nvidia/driver", "/"]),
    ],
)
def test_the_plugin_finds_nvml_in_the_driver_root_and_nothing_else(
    tmp_path: Path, value: str, roots: list[str]
) -> None:
    """The first of `roots` counts where there are several."""
    spec = pod_spec(render({"kubeletPlugin": {"driverRoot": value}}), "kubelet-plugin")
    (init,) = spec["initContainers"]
    host, links = tmp_path / "host", tmp_path / "links"
    for _ in range(2):  # the container may be started again
        script(init, {"/host": str(host), "/nvml": str(links)})
    for root in roots:
        driver = host / root.lstrip("/") / "usr/lib64"
        driver.mkdir(parents=True)
        (driver / "libnvidia-ml.so.1").write_text(f"nvml of {root}")
        (driver / "libc.so.6").write_text("another C library")

    (environment,) = (
        each["value"] for each in spec["containers"][0]["env"] if each["name"] == "LD_LIBRARY_PATH"
    )
    directories = [Path(each.replace("/nvml", str(links), 1)) for each in environment.split(":")]
    names = {file.name for each in directories for file in each.iterdir() if not file.is_dir()}
    assert names == {"libnvidia-ml.so.1"}
    found = [each / "libnvidia-ml.so.1" for each in directories]
    expected = [f"nvml of {root}" for root in roots]
    assert [each.read_text() for each in found if each.exists()] == expected


def test_each_node_gets_its_simulated_gpus_once(tmp_path: Path) -> None:
    values = {"enabled": True, "gpus": ["A30"], "nodes": {"one": ["B200", "A30"]}}
    for node, products in (("one", ["B200", "A30"]), ("two", ["A30"])):
        home = tmp_path / node
        spec = pod_spec(render({"simulated": {**values, "hostPath": str(home)}}), "kubelet-plugin")
        home.mkdir()
        (home / "gpus").mkdir()  # what an attempt that was cut off may leave
        (home / "gpus/state.json").write_text("")
        (init,) = spec["initContainers"]
        script(init, {}, NODE_NAME=node)
        (container,) = spec["containers"]
        assert container["command"][:3] == ["python", "-m", "sim"]
        subcommand, *given = arguments(container)
        plugin = simulator.get_command(click.Context(simulator), subcommand)
        assert plugin is not None
        options = parsed(plugin, given)
        machine = Machine(options["hardware"])
        assert [gpu.product for gpu in machine.state().gpus] == products
        assert str(machine.host_root) == str(
            parsed(kubeletplugin, list(options["arguments"]))["host_root"]
        )
        before = machine.snapshot()
        script(init, {}, NODE_NAME=node)
        assert Machine(options["hardware"]).snapshot() == before


def test_the_dockerfile_is_clean() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [hadolint, DOCKERFILE], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_controllers_image_is_not_roots_and_the_bases_version_is_fixed() -> None:
    found = stages()
    assert found["python"]["FROM"] == "${PYTHON_IMAGE}"
    image = r"^ARG PYTHON_IMAGE=python:3\.11\.\d+-slim-\w+(@sha256:[0-9a-f]{64})?$"
    assert re.search(image, DOCKERFILE.read_text(), re.MULTILINE)
    uid = found["controller"]["USER"].partition(":")[0]
    (container,) = pod_spec(render(), "controller")["containers"]
    assert int(uid) == pod_spec(render(), "controller")["securityContext"]["runAsUser"]
    assert "USER" not in found["kubelet-plugin"]
    for stage in ("controller", "kubelet-plugin"):
        objects = render()
        kind = "Deployment" if stage == "controller" else "DaemonSet"
        (container,) = find(objects, kind)["spec"]["template"]["spec"]["containers"]
        assert container["image"].startswith(f"dra-driver-nvidia-mig/{stage}:")
        entrypoint = ", ".join(f'"{each}"' for each in container["command"])
        assert found[stage]["ENTRYPOINT"] == f"[{entrypoint}]"


def test_the_build_context_holds_what_is_copied_and_little_more() -> None:
    ignore = (REPOSITORY / "deploy/Dockerfile.dockerignore").read_text().splitlines()
    sent = {line[1:] for line in ignore if line.startswith("!")}
    copied = {
        name
        for line in DOCKERFILE.read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for name in line.split()[1:-1]
    }
    assert sent == copied
    assert ignore[1] == "*"
