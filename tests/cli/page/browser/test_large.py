"""The page of a thousand nodes: what is not seen is not drawn."""

from __future__ import annotations

from tests.cli.page.browser.conftest import Tab
from tests.cli.page.scenes import make_wait, many_gpus
from tests.cli.page.served import page_for
from tests.cli.world import World
from tests.controller.helpers.objects import gpu, request

NODES = 1000


def test_a_thousand_nodes_are_there_and_few_of_them_are_drawn(world: World, tab: Tab) -> None:
    world.add_classes("7g.40gb")
    for number in range(NODES):
        world.add_mignode(f"node-{number}", *many_gpus(f"node-{number}", 4))
    world.add_claim("wanted", request("r", "mig-7g.40gb"))
    make_wait(world, "waits", "wanted")
    with page_for(world) as served:
        served.loaded()
        tab.open(served.url)
        page = tab.page
        tab.until(f"() => document.querySelectorAll('section.node').length === {NODES}")
        assert page.locator("#totals").inner_text() == "1000 nodes, 4000 GPUs"

        def drawn() -> int:
            return tab.count("section.node:has(.gpu)")

        assert 2 < drawn() < 40
        assert page.evaluate("() => document.querySelectorAll('*').length") < 6000
        page.keyboard.press("End")
        page.locator('[aria-label="node node-999"] .gpu').first.wait_for()
        tab.until("() => !document.querySelector('[aria-label=\"node node-0\"] .gpu')")
        assert drawn() < 40
        beside = page.locator("#waiting-title").bounding_box()
        assert beside is not None
        assert 0 <= beside["y"] < 100, "who waits is seen wherever the map is scrolled to"
        page.get_by_label("Search").fill("c-node-777-2-3")
        tab.until("() => document.querySelectorAll('section.node').length === 1")
        assert page.locator(".gpu .name").inner_text() == "gpu-2"
        page.get_by_role("button", name="Clear").click()
        tab.until(f"() => document.querySelectorAll('section.node').length === {NODES}")
        # The browser may have kept in view what was shown alone: two frames later nothing moves.
        frames = "requestAnimationFrame(() => requestAnimationFrame(done))"
        page.evaluate(f"() => {{ scrollTo(0, 0); return new Promise((done) => {frames}); }}")
        # What is drawn again is what has changed alone: nothing, where nothing did that is seen.
        page.locator('[aria-label="node node-0"] .gpu').first.wait_for()
        page.evaluate("() => { window.first = document.querySelector('.gpu'); }")
        world.replace_gpus("node-999", gpu(0, "node-999"))
        page.locator("#told li", has_text="on node-999 gpu-3").first.wait_for()
        assert page.evaluate("() => window.first.isConnected")
    assert tab.wrong == []
