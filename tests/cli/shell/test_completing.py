"""Shell completion, asked for by the real kubectl and by itself."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.shell.completing import complete, main
from tests.cli.world import World
from tests.controller.helpers.objects import gpu
from tests.helpers.waiting import PATIENCE

HERE = Path(sys.executable).parent


def names(kind: str, where: argparse.Namespace) -> list[str]:
    if kind == "gpu":
        return [f"{where.node}/gpu-0", f"{where.node}/gpu-1"]
    return [f"{kind}-{number}@{where.namespace}" for number in (1, 2)]


def plain(*words: str) -> list[str]:
    return [c.partition("\t")[0] for c in complete(words, names)[0]]


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
        ("map --w", ["--watch"]),
        ("doctor -n ", []),
        ("explain -n names", ["namespace-1@None", "namespace-2@None"]),
        ("drain --reason ", []),
        ("paint ", []),
    ],
)
def test_what_is_offered(line: str, offered: list[str]) -> None:
    assert plain(*line.split(" ")) == offered


@pytest.mark.parametrize("line", ["lint ", "lint a", "map --kubeconfig "])
def test_files_are_offered_where_files_are_meant(line: str) -> None:
    assert complete(line.split(" "), names) == ([], 0)


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
        assert main(line) == 0
        assert capsys.readouterr().out == offered


def test_a_cluster_that_does_not_answer_offers_nothing_and_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    assert main(["map", ""]) == 0
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
