"""The program as a whole: how it finds the cluster, its exit codes, what it loads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.program import main
from tests.cli.conftest import Mig
from tests.cli.world import World
from tests.dra.kube.stub import Stub, reply


def config(path: Path, *, server: str = "http://127.0.0.1:1", **parts: Any) -> Path:
    """A kubeconfig with one context ``c``."""
    body = {
        "current-context": "c",
        "contexts": [
            {"name": "c", "context": {"cluster": "k", "user": "u", **parts.pop("context", {})}}
        ],
        "clusters": [{"name": "k", "cluster": {"server": server, **parts.pop("cluster", {})}}],
        "users": [{"name": "u", "user": parts.pop("user", {})}],
        **parts,
    }
    path.write_text(yaml.safe_dump(body))
    return path


# -- exit codes


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "explain " in "".join(capsys.readouterr())


@pytest.mark.parametrize("line", [["paint"], ["map", "-o", "xml"], ["explain"], ["lint"]])
def test_a_wrong_command_line_is_2(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line) == 2
    assert "Usage: kubectl mig" in capsys.readouterr().err


def test_it_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert f'version = "{capsys.readouterr().out.split()[1]}"' in text


@pytest.mark.parametrize("line", [["--help"], ["map", "--help"], ["drain", "--help"]])
def test_help_is_0_and_names_the_exit_codes(
    line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line) == 0
    assert "the cluster cannot be reached" in capsys.readouterr().out


def test_a_cluster_that_does_not_answer_is_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(config(tmp_path / "k"))
    assert main(["map", "--kubeconfig", path]) == 3
    assert "no answer from http://127.0.0.1:1" in capsys.readouterr().err
    assert main(["map", "--kubeconfig", path, "-o", "json"]) == 3
    shown = json.loads(capsys.readouterr().out)
    assert (shown["kind"], shown["code"], shown["reason"]) == ("Error", 3, "UNREACHABLE")


def test_what_is_not_allowed_is_5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Stub()
    status = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no list for you"}
    server.calls.append(reply(status, status=403))
    try:
        assert main(["map", "--kubeconfig", str(config(tmp_path / "k", server=server.url))]) == 5
    finally:
        server.close()
    assert "no list for you" in capsys.readouterr().err


# -- kubeconfigs


def test_the_namespace_is_that_of_the_context_or_of_n(world: World, mig: Mig) -> None:
    for arguments, namespace in (((), "default"), (("-n", "team"), "team")):
        assert f"pod or ResourceClaim {namespace}/x" in mig("explain", "x", *arguments).err


def test_what_is_wrong_with_a_kubeconfig_is_named_and_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path / "k", **{"current-context": "d"})
    assert main(["map", "--kubeconfig", str(path)]) == 3
    assert "no context 'd'; there are: c" in capsys.readouterr().err


# -- what is loaded


def test_help_loads_neither_network_nor_model() -> None:
    code = (
        "import sys; from cli.program import main; main(['map', '--help']); "
        "assert not {'http.client', 'yaml', 'msgspec', 'dra.gpu.geometry'} & set(sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False)
    assert ended.returncode == 0
