"""The page of a thousand nodes of eight GPUs: every GPU is seen at once, few nodes in detail."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from cli.page.content import Content
from dra.common.resources import MIG_NODES
from dra.gpu.mignode import to_mignode
from dra.kube.reflector import Change
from tests.cli.page.browser.conftest import Tab
from tests.cli.page.fleet import Fleet, source_of
from tests.cli.page.served import served_from
from tests.controller.helpers.objects import DRIVER, gpu, inventory

NODES = 1000


def test_a_thousand_nodes_are_seen_at_once_and_few_of_them_in_detail(tab: Tab) -> None:
    fleet, content = Fleet(NODES), Content(DRIVER, time.monotonic, wall=lambda: datetime.now(UTC))
    with source_of(fleet, content) as source, served_from(source) as served:
        tab.open(served.url)
        page = tab.page
        assert len(served.ask("/data", Accept_Encoding="gzip").body) < 2**20
        assert tab.count("#told li") > 0
        assert page.locator("#told li", has_text="(seen)").count() == 0, "loading is no change"
        assert page.locator("#totals").inner_text() == "1,000 nodes, 8,000 GPUs"
        cells = page.locator("#fleet canvas").bounding_box()
        assert cells is not None
        assert cells["y"] + cells["height"] < 800, "every GPU is on the first screen"
        assert tab.count("section.node") == 20
        assert page.evaluate("() => document.querySelectorAll('*').length") < 7000
        assert page.locator("#pages").inner_text().startswith("1 to 20 of 1,000")
        page.locator("#fleet").focus()
        page.keyboard.press("End")
        page.keyboard.press("Enter")
        name = "() => document.activeElement.dataset.name"
        assert page.evaluate(name) == "gpu-node-1000"
        assert tab.count("section.node") == 20
        beside = page.locator("#waiting-title").bounding_box()
        assert beside is not None
        assert 0 <= beside["y"] < 100, "who waits is seen wherever the map is scrolled to"
        claim = fleet.objects[MIG_NODES][776]["status"]["gpus"][2]["instances"][0]["claim"]["name"]
        page.get_by_label("Search").fill(claim)
        tab.until("() => document.querySelectorAll('section.node').length === 1")
        assert page.locator(".gpu .name").inner_text() == "gpu-2"
        page.get_by_role("button", name="Clear").click()
        tab.until("() => document.querySelectorAll('section.node').length === 20")
        # What is drawn again is what has changed alone: nothing, where nothing did that is seen.
        page.evaluate("() => { window.first = document.querySelector('.gpu'); }")
        empty = to_mignode(inventory("gpu-node-999", gpu(0, "gpu-node-999")))
        content.take(MIG_NODES, Change("modified", None, empty))
        page.locator("#told li", has_text="on gpu-node-999").first.wait_for()
        assert page.evaluate("() => window.first.isConnected")
    assert tab.wrong == []
