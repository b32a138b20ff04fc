"""Remains of a check that makes slices: none, or known to the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from kubeletplugin.nvml.session import Session
from sim.nvml.cabi import Return
from sim.nvml.faults import Action, Fault
from tests.helpers.waiting import PATIENCE, wait_for
from tests.kubeletplugin.check.conftest import (
    A100,
    CI_CREATE,
    CREATE,
    GI_CREATE,
    MakeNode,
    Node,
    assert_clean,
    refused,
    state_of,
)
from tests.kubeletplugin.helpers.impatience import give_up_hanging_calls


def test_what_was_made_before_an_error_is_removed(make_node: MakeNode) -> None:
    node = make_node(A100)
    node.machine.inject(Fault(function=CI_CREATE, action="return", code=Return.UNKNOWN, after=3))
    report = node.check(*CREATE).report
    assert any("UNKNOWN" in t.refused for t in report.trials)
    assert_clean(node)


def test_a_slice_that_cannot_be_removed_is_named_and_removed_by_the_next_check(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kubeletplugin.check import creating

    monkeypatch.setattr(creating, "_PAUSE_SECONDS", 0.0)
    node = make_node(A100)
    fault = Fault(function="nvmlGpuInstanceDestroy", action="return", code=Return.IN_USE, times=0)
    node.machine.inject(fault)
    result = node.run(*CREATE)
    assert result.exit_code == 1
    assert "the slice 1g.5gb at 0:1 of GPU" in result.output
    assert "check --create GPU-" in result.output
    assert len(node.machine.gpu(0).gpu_instances) == 1
    node.machine.clear_faults()
    done = node.run(*CREATE)
    assert "removing 1g.5gb at 0:1" in done.output
    assert done.exit_code == 0, done.output
    assert node.machine.gpu(0).gpu_instances == []
    assert not (state_of(node) / "check.json").exists()


def test_a_gpu_that_falls_off_the_bus_before_the_first_slice_is_named(make_node: MakeNode) -> None:
    node = make_node(A100)
    node.machine.inject(
        Fault(
            function="nvmlDeviceGetMinorNumber", action="return", code=Return.GPU_IS_LOST, after=2
        )
    )
    [gpu] = node.machine.state().gpus
    assert f"GPU {gpu.uuid} answers no more: " in refused(node, *CREATE)
    assert not state_of(node).exists()


def test_nothing_is_removed_that_nobody_agreed_to_have_removed(make_node: MakeNode) -> None:
    node = make_node(A100)
    node.machine.inject(Fault(function=CI_CREATE, action="crash-after"))
    killed(node)
    assert "Remove 1g.5gb at 0:1" in refused(node, "--create", "0")


def test_a_call_that_hangs_ends_the_check_and_what_it_did_is_cleaned_up_later(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node(A100)
    node.machine.inject(Fault(function=CI_CREATE, action="hang"))
    with monkeypatch.context() as soon:
        give_up_hanging_calls(soon, node.machine)
        close = Session.close
        soon.setattr(Session, "close", lambda session: close(session, 0.0))
        result = node.run(*CREATE)
    assert result.exit_code == 1
    assert f"{CI_CREATE} hangs" in result.output
    assert len(node.machine.gpu(0).gpu_instances) == 1
    node.machine.clear_faults()
    done = node.run(*CREATE)
    assert done.exit_code == 0, done.output
    assert node.machine.gpu(0).gpu_instances == []
    assert not (state_of(node) / "check.json").exists()


def started(node: Node, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sim", "check", "--hardware", str(node.machine.directory)]
    return subprocess.Popen(
        [*command, "--", *CREATE, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={k: v for k, v in os.environ.items() if k != "KUBECONFIG"},
    )


def killed(node: Node) -> None:
    """Run a check that ends in the middle of a call, which a fault says."""
    with started(node) as process:
        process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGKILL
    node.machine.end_process(process.pid)  # as the kernel does


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_check_that_is_told_to_end_leaves_nothing(make_node: MakeNode, number: int) -> None:
    node = make_node(A100)
    hang = node.machine.inject(Fault(function=CI_CREATE, action="hang"))
    with started(node) as process:
        wait_for("the call", lambda: node.machine.faults.seen(hang))
        process.send_signal(number)
        node.machine.clear_faults()
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "nothing is left on the GPU" in errors
    assert_clean(node)


@pytest.mark.parametrize(
    ("function", "action"),
    [
        (GI_CREATE, "crash-after"),
        (CI_CREATE, "crash-after"),
        ("nvmlComputeInstanceDestroy", "crash-after"),
    ],
)
def test_what_a_killed_check_has_left_is_known_and_removed(
    make_node: MakeNode, function: str, action: Action
) -> None:
    node = make_node(A100)
    after = 1 if function == "nvmlGpuInstanceDestroy" else 0
    node.machine.inject(Fault(function=function, action=action, after=after))
    killed(node)
    assert (state_of(node) / "check.json").exists()
    node.machine.clear_faults()
    result = node.run(*CREATE)
    assert result.exit_code == 0, result.output
    assert node.machine.gpu(0).gpu_instances == []
    assert not (state_of(node) / "check.json").exists()


def test_what_somebody_else_has_made_meanwhile_is_not_cleaned_up(make_node: MakeNode) -> None:
    node = make_node(A100)
    node.machine.inject(Fault(function=GI_CREATE, action="crash-before"))
    killed(node)
    others = node.machine.create_slice(0, "1g.5gb", start=3)
    node.machine.clear_faults()
    assert "has GPU instances (" in node.run(*CREATE).output
    assert [g.id for g in node.machine.gpu(0).gpu_instances] == [others.gpu_instance]
