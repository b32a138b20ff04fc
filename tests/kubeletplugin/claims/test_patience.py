"""Repetition of what failed for a moment, by a clock that is turned by hand."""

from __future__ import annotations

import pytest

from kubeletplugin.claims.tasks import patiently
from kubeletplugin.errors import BusyError, PluginError
from kubeletplugin.nvml.errors import InUseError, NvmlError
from tests.dra.kube.clocks import FakeClock

PASSES = BusyError("being removed", passing=True)
LASTS = BusyError("held")
NVML_PASSES = InUseError("nvmlGpuInstanceDestroy", 19)


@pytest.mark.parametrize(
    ("failures", "end", "pauses", "raised"),
    [
        ([], 0.0, [], None),
        ([LASTS], 9.0, [], LASTS),
        ([PASSES], 9.0, [0.1], None),
        ([NVML_PASSES, PASSES], 9.0, [0.1, 0.2], None),
        ([PASSES, LASTS], 9.0, [0.1], LASTS),
        ([PASSES] * 6, 9.0, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0], None),
        ([PASSES] * 4, 0.75, [0.1, 0.2, 0.4], PASSES),
        ([PASSES], 0.05, [], PASSES),
    ],
)
def test_what_passes_is_tried_again_until_the_time_is_up(
    failures: list[PluginError | NvmlError],
    end: float,
    pauses: list[float],
    raised: Exception | None,
) -> None:
    clock, left = FakeClock(), list(failures)

    def attempt() -> str:
        if left:
            raise left.pop(0)
        return "done"

    def run() -> str:
        return patiently(attempt, end=end, longest=1.0, clock=clock)

    if raised is None:
        assert run() == "done"
    else:
        with pytest.raises(type(raised)) as caught:
            run()
        assert caught.value is raised
    assert clock.waits == pauses
