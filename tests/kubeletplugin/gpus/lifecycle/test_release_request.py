"""Who asks for GPUs to be released, and what is said of it: a table."""

from __future__ import annotations

import pytest

from dra.gpu.inventory import Drain
from kubeletplugin.gpus.gpu import GpuUnit
from kubeletplugin.gpus.node import Pause
from kubeletplugin.gpus.releasing import ReleaseRequest
from kubeletplugin.nvml.gpus import Card

PAUSE = Pause("example.com/gpu=false")
ONE, ALL = Drain(("gpu-1",), reason="repair"), Drain(())
GPU = GpuUnit(1, Card("GPU-b", 1))


@pytest.mark.parametrize(
    ("pause", "drain", "of_gpu_0", "of_gpu_1", "of_node"),
    [
        (None, None, "", "", ""),
        (None, ONE, "", "drained: repair", ""),
        (None, ALL, "drained", "drained", "drained"),
        (PAUSE, None, *["label example.com/gpu=false"] * 3),
        (PAUSE, ONE, *["label example.com/gpu=false"] * 3),
    ],
)
def test_a_pause_covers_all_gpus_and_a_drain_those_that_it_names(
    pause: Pause | None, drain: Drain | None, of_gpu_0: str, of_gpu_1: str, of_node: str
) -> None:
    request = ReleaseRequest("node-a", pause, drain)
    found = (request.why("gpu-0"), request.why("gpu-1"), request.why_node())
    assert found == (of_gpu_0, of_gpu_1, of_node)


@pytest.mark.parametrize(
    ("request_", "others_held", "parts"),
    [
        (
            ReleaseRequest("node-a", drain=ONE),
            True,
            (
                "(drained: repair)",
                "it may be reset (nvidia-smi -r -i GPU-b)",
                "kubectl mig drain node-a",
                "kubectl mig resume node-a gpu-1 ends it",
            ),
        ),
        (
            ReleaseRequest("node-a", drain=ALL),
            False,
            ("(drained)", "the driver unloaded; ", "kubectl mig resume node-a gpu-1 ends it"),
        ),
        (
            ReleaseRequest("node-a", PAUSE, ALL),
            False,
            ("back in service when example.com/gpu is true again or gone",),
        ),
    ],
)
def test_the_text_says_what_may_be_done_and_what_ends_it(
    request_: ReleaseRequest, parts: tuple[str, ...], *, others_held: bool
) -> None:
    text = request_.text(GPU, others_held=others_held)
    assert [part for part in parts if part not in text] == []
