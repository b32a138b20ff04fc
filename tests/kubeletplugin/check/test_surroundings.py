"""The half of the check that only reads: process and options."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from kubeletplugin.__main__ import main as kubeletplugin
from kubeletplugin.check.command import plugin_beside, plugin_has_released
from kubeletplugin.check.host import examine_process
from kubeletplugin.check.report import Item, Mark, Notebook
from kubeletplugin.host.roots import Roots


@pytest.mark.parametrize(
    ("own", "first", "mark"),
    [
        ("4026531836", None, Mark.OK),
        ("4026532000", None, Mark.NOTE),
        ("4026532000", "4026532000", Mark.OK),  # a node that is a container itself
        ("4026532001", "4026532000", Mark.NOTE),
    ],
)
def test_the_pid_namespace_is_compared_with_that_of_the_nodes_first_process(
    tmp_path: Path, own: str, first: str | None, mark: Mark
) -> None:
    for process_id, number in (("self", own), ("1", first)):
        if number is not None:
            (tmp_path / process_id / "ns").mkdir(parents=True)
            (tmp_path / process_id / "ns/pid").symlink_to(f"pid:[{number}]")
    notebook = Notebook()
    examine_process(notebook, proc=tmp_path)
    assert [f.mark for f in notebook.findings if f.item is Item.PID_NAMESPACE] == [mark]


def process_of(proc: Path, pid: str, namespace: str, *words: str) -> None:
    (proc / pid / "ns").mkdir(parents=True)
    (proc / pid / "ns/mnt").symlink_to(f"mnt:[{namespace}]")
    (proc / pid / "cmdline").write_bytes("\0".join(words).encode() + b"\0")


PLUGIN = ("-m", "kubeletplugin", "--node-name=n", "--host-root=/host")
SIMULATED = ("-m", "sim", "plugin", "--hardware=/gpus", "--", "--node-name=n", "--host-root=/host")


@pytest.mark.parametrize("words", [PLUGIN, SIMULATED])
def test_a_plugin_in_the_same_container_is_found(tmp_path: Path, words: tuple[str, ...]) -> None:
    process_of(tmp_path, "self", "1", "sh")
    process_of(tmp_path, "7", "2", "python", *PLUGIN, "--driver-root=/other")
    process_of(tmp_path, "8", "1", "python", "-m", "kubeletplugin", "check")
    assert plugin_beside(tmp_path) == []
    process_of(tmp_path, "9", "1", "python", *words)
    assert plugin_beside(tmp_path) == [*words]


@pytest.mark.parametrize("words", [PLUGIN, SIMULATED])
def test_a_check_in_a_pod_is_run_anew_with_the_command_of_the_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    class Ran(BaseException):
        """Nothing comes after it."""

    def run(path: str, command: list[str]) -> None:
        raise Ran(path, command)

    process_of(tmp_path, "self", "1", "sh")
    process_of(tmp_path, "9", "1", "python", *words)
    monkeypatch.setattr(os, "execv", run)
    monkeypatch.setattr("kubeletplugin.check.command._PROC", tmp_path)
    asked = ["--driver-root", str(tmp_path), "check", "--json", str(tmp_path / "report.json")]
    monkeypatch.setattr(sys, "argv", ["kubeletplugin", *asked])
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("NODE_NAME", "n")
    with pytest.raises(Ran) as ran:
        kubeletplugin(asked)
    assert ran.value.args == (sys.executable, [sys.executable, *words, *asked])
    with pytest.raises(SystemExit):  # what was run anew has the options, and stays
        kubeletplugin(["--node-name=n", *asked])
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    with pytest.raises(SystemExit):
        kubeletplugin(asked)


def test_a_plugin_has_released_when_it_has_no_device_file_open_and_is_not_believed_unseen(
    tmp_path: Path,
) -> None:
    host = Roots(tmp_path, tmp_path, tmp_path / "cdi", tmp_path / "kubelet", tmp_path / "state")
    process = tmp_path / "proc/4711"
    (process / "fd").mkdir(parents=True)
    (process / "cmdline").write_bytes(b"/bin/sh\0")
    assert not plugin_has_released(host)
    (process / "cmdline").write_bytes(b"python\0-m\0kubeletplugin\0--node-name=n\0")
    (process / "fd/3").symlink_to("/dev/null")
    assert plugin_has_released(host)
    (process / "fd/4").symlink_to("/dev/nvidia0")
    assert not plugin_has_released(host)
