"""Claims that go before their slices are begun, and before the watch tells of it."""

from __future__ import annotations

import pytest

from kubeletplugin.claims import claim_watch
from tests.failures.helpers.agreement import entries
from tests.failures.stories.anyorder import AnyOrder


@pytest.fixture(autouse=True)
def told_a_moment_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, what the watch has told is taken as it was."""
    monkeypatch.setattr(claim_watch, "FRESH_SECONDS", 3600.0)


def test_nothing_is_left_of_what_has_waited_for_gpus_that_could_not_be_asked() -> None:
    """One claim has gone meanwhile, of another no pod comes, and kube-scheduler wants a third."""
    story = type("Awaited", (AnyOrder,), {"binds_late": True})()
    story.nvml_fails(function="*", code=999, after=0, times=0, gpu=None)
    story.crash()
    gone = story.kube_scheduler_waits_for_slices(devices=["gpu-0-mig-1g5gb-19-2"])
    story.delete_claim(claim=gone)
    story.make_ahead(claim=story.create_claim(devices=["gpu-0-mig-1g5gb-19-3"]))
    story.kube_scheduler_waits_for_slices(devices=["gpu-1-mig-1g5gb-19-2"])
    with story.recorder.outside():
        assert not entries(story.site)
    story.teardown()
