"""nvidia-cdi-hook: when it is used, and with which arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdi.spec import Device, DeviceNode, Edits, Spec, encode, joined, validate
from kubeletplugin.errors import HostError
from kubeletplugin.host.driverfiles import HOOK_NAMES, DriverSearch, find_hook
from tests.kubeletplugin.cdi.rules import hold
from tests.kubeletplugin.host.layouts import (
    VERSION,
    find,
    hook_program,
    install,
    mounted,
    program,
    roots,
)

HOOK = "usr/bin/nvidia-cdi-hook"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    install(tmp_path)
    program(tmp_path / "sbin/ldconfig")
    return tmp_path


def arguments(host: Path, *, hook: str = "auto") -> list[tuple[str, ...]]:
    return [h.args for h in find(host, hook=hook).common.hooks]


def test_a_spec_with_hooks_keeps_the_specification_s_rules(host: Path) -> None:
    hook_program(host / HOOK, *HOOK_NAMES)
    node = Edits(nodes=(DeviceNode("/dev/nvidia0", major=195, minor=0, gid=44),), gids=(44,))
    device = Device("1-gpu-0", joined(node, find(host).video))
    spec = Spec("k8s.mig.dra.dev/claim", (device,), common=find(host).common)
    validate(spec)
    hold(encode(spec))
    assert encode(spec)["cdiVersion"] == "0.7.0"


def test_nvidia_ctk_has_the_hooks_below_a_subcommand(host: Path) -> None:
    hook_program(host / "usr/bin/nvidia-ctk", *HOOK_NAMES)
    assert {args[:2] for args in arguments(host)} == {("nvidia-ctk", "hook")}


@pytest.mark.parametrize(
    "place",
    [
        "usr/local/nvidia/toolkit/nvidia-cdi-hook",
        "usr/local/bin/nvidia-cdi-hook",
        "home/kubernetes/bin/nvidia/toolkit/nvidia-cdi-hook",
        "usr/local/nvidia/toolkit/nvidia-ctk",
    ],
)
def test_it_is_found_by_itself_also_where_the_toolkit_container_puts_it(
    host: Path, place: str
) -> None:
    hook_program(host / place, *HOOK_NAMES)
    found = find_hook(roots(host), "auto")
    assert found is not None
    assert found.path == f"/{place}"


def test_the_wrapper_of_an_older_toolkit_container_is_looked_behind(host: Path) -> None:
    place = host / "usr/local/nvidia/toolkit/nvidia-cdi-hook"
    program(place, "#! /bin/sh\nexec /usr/local/nvidia/toolkit/nvidia-cdi-hook.real\n")
    hook_program(place.with_name("nvidia-cdi-hook.real"), "update-ldcache", "create-symlinks")
    assert [args[1] for args in arguments(host)] == ["create-symlinks", "update-ldcache"]


def test_a_hook_that_its_version_does_not_know_is_left_out(host: Path) -> None:
    hook_program(host / HOOK, "update-ldcache", "create-symlinks")
    assert "enable-cuda-compat" not in {args[1] for args in arguments(host)}
    hook_program(host / HOOK, "create-symlinks")
    assert arguments(host) == []


def test_never_means_mounts_alone(host: Path) -> None:
    hook_program(host / HOOK, *HOOK_NAMES)
    assert arguments(host, hook="never") == []
    files = find(host, hook="never")
    assert "/usr/lib64/libcuda.so" in mounted(files)
    DriverSearch(roots(host), hook="never").check(files)


def test_a_path_that_is_named_counts_alone_and_has_to_be_there(host: Path) -> None:
    hook_program(host / HOOK, *HOOK_NAMES)
    search = DriverSearch(roots(host), hook="/opt/nvidia-cdi-hook")
    with pytest.raises(HostError, match=r"--cdi-hook=/opt/nvidia-cdi-hook is no .*--cdi-hook=auto"):
        search.check(search.find(VERSION))
    hook_program(host / "opt/nvidia-cdi-hook", *HOOK_NAMES)
    search.check(search.find(VERSION))
    assert {h.path for h in search.find(VERSION).common.hooks} == {"/opt/nvidia-cdi-hook"}
