"""Shell completion, asked for by the real kubectl and by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from cli import session
from cli.program import complete
from tests.cli.world import World
from tests.controller.helpers.objects import gpu
from tests.helpers.waiting import PATIENCE

Offer = Callable[[str], tuple[list[str], bool]]
HERE = Path(sys.executable).parent


def names(kind: str, options: Mapping[str, Any]) -> list[str]:
    if kind == "gpu":
        return [f"{options['node']}/gpu-0", f"{options['node']}/gpu-1"]
    return [f"{kind}-{number}@{options.get('namespace')}" for number in (1, 2)]


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Offer:
    """Words offered after a line, and True if files are."""
    monkeypatch.setattr(session, "names_of", names)

    def offered(line: str) -> tuple[list[str], bool]:
        complete(line.split(" "))
        *found, directive = capsys.readouterr().out.splitlines()
        return [each.partition("\t")[0] for each in found], directive == ":0"

    return offered


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("re", ["resume", "release"]),
        ("map node-1", ["node-1@None"]),
        ("map node-1@None ", ["node-2@None"]),
        ("drain ", ["node-1@None", "node-2@None"]),
        ("drain n1 ", ["n1/gpu-0", "n1/gpu-1"]),
        ("drain --reason why n1 n1/gpu-0 ", ["n1/gpu-1"]),
        ("explain -n x pod", ["pod", "pod-1@x", "pod-2@x"]),
        ("explain claim ", ["claim-1@None", "claim-2@None"]),
        ("explain pod a ", []),
        ("release --namespace x claim-2", ["claim-2@x"]),
        ("map -o ", ["text", "wide", "json"]),
        ("map --no", ["--no-color"]),
        ("doctor -n ", []),
        ("explain -n names", ["namespace-1@None", "namespace-2@None"]),
        ("drain --reason ", []),
        ("--context c explain -n x pod", ["pod", "pod-1@x", "pod-2@x"]),
    ],
)
def test_what_is_offered(offer: Offer, line: str, offered: list[str]) -> None:
    assert offer(line) == (offered, False)


@pytest.mark.parametrize("line", ["lint ", "lint a", "map --kubeconfig "])
def test_files_are_offered_where_files_are_meant(offer: Offer, line: str) -> None:
    assert offer(line) == ([], True)


def test_the_names_are_those_of_the_cluster(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(world.kubeconfig))
    world.add_node("node-a", gpu(0, "node-a"), gpu(1, "node-a"))
    world.add_claim("wanted")
    for line, offered in (
        (["map", ""], "node-a\n:4\n"),
        (["drain", "node-a", ""], "gpu-0\ngpu-1\n:4\n"),
        (["drain", "nowhere", ""], ":4\n"),
        (["explain", "claim", "w"], "wanted\n:4\n"),
        (["explain", "claim", "-n", "other", ""], ":4\n"),
    ):
        assert complete(line) == 0
        assert capsys.readouterr().out == offered


def test_a_cluster_that_does_not_answer_offers_nothing_and_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    assert complete(["map", ""]) == 0
    assert capsys.readouterr() == (":4\n", "")


def test_kubectl_finds_the_plugin_and_its_completion() -> None:
    done = subprocess.run(
        [HERE / "kubectl", "__complete", "mig", "dr"],
        env=os.environ | {"PATH": f"{HERE}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert done.stdout.startswith("drain\tPlace nothing new")
    assert "ShellCompDirectiveNoFileComp" in done.stderr
