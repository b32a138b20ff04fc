"""A controller as a process, and tenants who want to stop it."""

from __future__ import annotations

from pathlib import Path

from dra.common.resources import EVENTS
from tests.controller.helpers.objects import request
from tests.controller.helpers.site import Site
from tests.dra.cel.hostile import TOO_MUCH
from tests.helpers.waiting import wait_for

BAD = [text for text in TOO_MUCH.values() if "lists." not in text and "flatten" not in text]
"""Without functions that the embedded server does not know."""


def peak(pid: int) -> int:
    """The most memory that a process ever had, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmHWM")]
    return int(line.split()[1]) // 1024


def test_selectors_that_want_all_memory_or_time_do_not_stop_the_controller(site: Site) -> None:
    site.add_node("node-a")
    controller = site.start("--no-leader-elect")
    site.wait_classes()
    site.claim("first")
    site.pod("first", "first")
    wait_for("allocation", lambda: site.allocation("first"))
    before = peak(controller.pid)
    names = [f"bad-{number}" for number in range(len(BAD))]
    for name, text in zip(names, BAD, strict=True):
        site.claim(name, request("r", "mig-1g.5gb", selectors=[{"cel": {"expression": text}}]))
        site.pod(name, name)
    site.claim("good", request("r", "mig-1g.5gb"))
    site.pod("good", "good")
    wait_for("allocation", lambda: site.allocation("good"))

    def told() -> set[str]:
        events = site.api.list(EVENTS, namespace="default").items
        return {e["involvedObject"]["name"] for e in events if e["reason"] == "SelectorTooCostly"}

    wait_for("events", lambda: told() >= {*names})
    assert controller.poll() is None
    assert peak(controller.pid) < before + 32
    assert not any(site.allocation(name) for name in names)
