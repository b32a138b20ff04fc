"""The page of a simulated cluster of two nodes."""

from __future__ import annotations

import re
from contextlib import ExitStack

import pytest

from dra.common.resources import MIG_NODES, PODS, RESOURCE_CLAIMS
from tests.cli.page.browser.conftest import Tab
from tests.cli.page.scenes import busy, end_pod, held, reference, say_waiting
from tests.cli.page.served import page_for, port_of
from tests.cli.world import World
from tests.controller.helpers.objects import gpu

HOSTILE = (
    '<img src=x onerror=alert(1)></script><script>alert(2)</script>"><svg onload=alert(3)>',
    "javascript:alert(4) {{7*7}}${alert(5)} \x1b[2J\x1b]0;title\x07 \u202eko si ti\u2066",
    "<style>*{display:none}</style><base href=//evil.example>",
    "<meta http-equiv=refresh content=0;url=//evil.example>",
)

CONTRASTS = """() => {
  const parse = (text) => {
    const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
    return { r, g, b, a };
  };
  const light = ({ r, g, b }) => {
    const [x, y, z] = [r, g, b].map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const found = parse(getComputedStyle(each).backgroundColor);
      if (found.a === 1) return found;
    }
    return parse(getComputedStyle(document.body).backgroundColor);
  };
  const low = [];
  let looked = 0;
  for (const element of document.body.querySelectorAll("*")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || !element.checkVisibility() || element.closest("option, noscript")) continue;
    looked += 1;
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push(`${element.tagName} ${element.className} ${ratio.toFixed(2)}`);
  }
  return { low, looked };
}"""


LAST_CELL = """() => {
  const [fleet, node] = ["fleet", "cursor"].map((id) => document.getElementById(id))
    .map((each) => each.getBoundingClientRect());
  return { x: node.right - fleet.left - 8, y: node.top + node.height / 2 - fleet.top };
}"""
"""Place in the fleet of the last GPU of the node under its cursor."""


def test_it_loads_and_asks_nobody_else(world: World, tab: Tab) -> None:
    busy(world)
    with page_for(world) as served:
        tab.open(served.url)
        page = tab.page
        assert page.locator("#totals").inner_text() == "2 nodes, 3 GPUs"
        assert page.get_by_role("region", name="node node-a").is_visible()
        assert page.get_by_role("list", name="node-a gpu-0").get_by_role("listitem").count() == 4
        assert tab.slots() == [
            "notebook default · 1g.5gb",
            "foreign 1g.5gb",
            "trainer-0 default · 3g.20gb",
            "big-0 default · 4g.20gb",
        ]
        assert page.get_by_role("option", name="waits").is_visible()
        assert page.locator("#told li").inner_text().splitlines()[-1] == "no GPU has room"
        assert "ECC errors: look at nvidia-smi -q" in page.locator(".gpu.away").inner_text()
        assert "token" not in page.url
        assert {url.partition("/")[2].split("/")[1] for url in tab.requests} == {
            served.address.removeprefix("http://")
        }
        page.reload()
        tab.live()
        assert tab.count(".gpu") == 3
    assert tab.wrong == []


def test_it_follows_the_cluster_without_a_reload_and_redraws_nothing_else(
    world: World, tab: Tab
) -> None:
    busy(world)
    with page_for(world) as served:
        tab.open(served.url)
        tab.page.evaluate("""() => {
          window.same = [...document.querySelectorAll(".gpu, #pods li")].filter((each) =>
            !each.closest('[aria-label="node node-b"]'));
          document.querySelector("#pods").focus();
        }""")
        end_pod(world, "big-0", "big")
        world.replace_gpus("node-b", gpu(0, "node-b"))
        tab.until(
            """() => !document.querySelector('[aria-label="node node-b"] .slot:not(.free)')"""
        )
        line = tab.page.locator("#told li", has_text="removed")
        assert re.sub(r"\s+", " ", line.inner_text()).endswith(
            "removed big-0 4g.20gb on node-b gpu-0 at 0:4 (seen)"
        )
        claim = world.hold("new", "node-b", "gpu-0-mig-1g5gb-19-6", pod_name="new-0")
        tab.page.locator("#told li", has_text="allocated").wait_for()
        made = held("1g.5gb", 6, reference(claim))
        world.replace_gpus("node-b", gpu(0, "node-b", instances=(made,)))
        tab.page.locator("#told li", has_text="now prepared").wait_for()
        assert tab.page.evaluate(
            "() => window.same.length === 3 && window.same.every((e) => e.isConnected)"
        )
        assert tab.page.evaluate("() => document.activeElement.id") == "pods"
    assert tab.wrong == []


def test_it_filters_by_search_namespace_product_and_state(world: World, tab: Tab) -> None:
    busy(world)
    world.add_mignode("node-c", gpu(0, "node-c", mig=False))
    found = world.api.get(MIG_NODES, "node-c")["status"]
    found["gpus"][0]["productName"] = "NVIDIA H100"
    world.set_status(MIG_NODES, {"metadata": {"name": "node-c"}}, found)
    with page_for(world) as served:
        tab.open(served.url)
        page = tab.page
        page.locator(".node h3", has_text="node-c").wait_for()

        def shown() -> list[str]:
            script = "rows => rows.map((e) => e.parentElement.dataset.name + ' ' + e.dataset.name)"
            found: list[str] = page.locator(".gpu").evaluate_all(script)
            return found

        page.get_by_label("Search").fill("TRAINER")
        tab.until("() => document.querySelectorAll('.gpu').length === 1")
        assert shown() == ["node-a gpu-0"]
        assert tab.count(".slot.dim") == 2
        assert page.locator("#pages").inner_text() == "1, 3 in all"
        page.get_by_role("button", name="Clear").click()
        tab.until("() => document.querySelectorAll('.gpu').length === 4")
        page.get_by_label("Product").select_option("H100")
        assert shown() == ["node-c gpu-0"]
        page.get_by_label("Product").select_option("")
        page.get_by_label("State").select_option("foreign")
        assert shown() == ["node-a gpu-0"]
        page.get_by_label("State").select_option("unavailable")
        assert shown() == ["node-a gpu-1"]
        page.get_by_label("State").select_option("")
        page.get_by_label("Namespace").fill("nobodys")
        page.get_by_label("Namespace").press("Enter")
        tab.until("() => document.querySelectorAll('.gpu').length === 0")
        assert tab.count("#pods li") == tab.count("#told li") == 0
        page.get_by_label("Namespace").fill("default")
        page.get_by_label("Namespace").press("Enter")
        tab.until("() => document.querySelectorAll('.gpu').length === 2")
        assert tab.count("#pods li") == 1
    assert tab.wrong == []


def test_with_the_keyboard_alone_one_learns_who_is_in_the_way(world: World, tab: Tab) -> None:
    busy(world)
    with page_for(world) as served:
        tab.open(served.url)
        page = tab.page
        page.keyboard.press("Tab")
        assert page.evaluate("() => document.activeElement.textContent") == "Skip to the nodes"
        order = []
        for _ in range(10):
            page.keyboard.press("Tab")
            order.append(page.evaluate("() => document.activeElement.id || 'BUTTON'"))
            outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
            assert outline == "solid"
        fields = ("search", "namespace", "product", "state", "BUTTON")
        assert order == ["fleet", "BUTTON", "pods", "told", *fields, "BUTTON"]
        page.keyboard.press("w")
        page.keyboard.press("Enter")
        page.locator("#ways").wait_for()
        chosen = page.locator("#pods").get_by_role("option", selected=True)
        assert chosen.inner_text().startswith("waits")
        assert page.locator("#why").inner_text().count("NoRoom") == 1
        ways = [re.sub(r"\s+", " ", text) for text in page.locator("#ways li").all_inner_texts()]
        assert ways == [
            "node-b gpu-0 if big-0 (4g.20gb) ends",
            "node-a gpu-0 if notebook (1g.5gb), foreign (1g.5gb), trainer-0 (3g.20gb) end",
        ]
        assert tab.slots(".blocks") == ["▲ big-0 default · 4g.20gb in the way"]
        page.keyboard.press("n")
        assert page.locator("#places").inner_text() == "1 of 2 ways"
        page.keyboard.press("n")
        assert page.locator("#places").inner_text() == "2 of 2 ways"
        assert len(tab.slots(".blocks")) == 3
        assert page.locator(".gpu.here").locator(".name").inner_text() == "gpu-0"
        assert page.evaluate("() => document.activeElement.dataset.name") == "node-a"
        page.keyboard.press("Escape")
        assert tab.count(".slot.blocks") == 0
        assert page.locator("#why").is_hidden()
        page.keyboard.press("/")
        page.keyboard.type("big")
        tab.until("() => document.querySelectorAll('.gpu').length === 1")
        page.locator("summary").focus()
        page.keyboard.press("Enter")
        row = page.get_by_role("row", name="big-0")
        assert row.inner_text().split("\t")[:7] == [
            *("gpu-0", "0:4", "4g.20gb", "prepared", "big-0", "default", "big"),
        ]
    assert tab.wrong == []


def test_the_overview_counts_what_is_free_and_leads_to_a_node_by_key_and_by_click(
    world: World, tab: Tab
) -> None:
    busy(world)
    full = (held("4g.20gb", 0, None), *(held("1g.5gb", start, None) for start in (4, 5, 6)))
    lost = gpu(1, "node-c", unavailable="it is lost", reason="GpuLost")
    world.add_node("node-c", gpu(0, "node-c", instances=full), lost)
    with page_for(world) as served:
        tab.open(served.url)
        page = tab.page
        figures = [re.sub(r"\s+", " ", t) for t in page.locator("#figures > div").all_inner_texts()]
        assert figures[0] == "Free memory 35Gi of 200Gi"
        assert figures[1] == "Slices in use 8 on 3 of 5 GPUs"
        assert figures[2].startswith("Pods that wait 1 the longest for ")
        assert figures[3] == "⚠ Need a look 1 1 GPU Show"
        rooms = [re.sub(r"\s+", " ", t) for t in page.locator("#rooms li").all_inner_texts()]
        assert "1g.5gb 5" in rooms
        assert "2g.10gb 2" in rooms
        assert "4g.20gb 0 1 GPU with the memory, but too few compute slices" in rooms
        assert "7g.40gb 0 no GPU has the memory" in rooms
        assert re.sub(r"\s+", " ", page.locator("#reasons").inner_text()) == "WaitingForSlices 1"
        room = page.get_by_role("region", name="node node-c").locator(".room").first
        text = re.sub(r"\s+", " ", room.inner_text())
        assert text == "nothing fits 5Gi free, none of 7 compute slices left"
        age = page.locator("#pods time").inner_text()
        assert re.fullmatch(r"\d+ d", age)
        page.keyboard.press("f")
        page.keyboard.press("ArrowRight")
        cell = page.locator("#fleet").get_by_role("option")
        assert cell.get_attribute("aria-label") == "node-b: 1 GPU, 20Gi of 40Gi free"
        page.keyboard.press("Enter")
        focused = "() => document.activeElement.dataset.name"
        assert page.evaluate(focused) == "node-b"
        page.keyboard.press("f")
        page.keyboard.press("End")
        page.locator("#fleet").click(position=page.evaluate(LAST_CELL))
        assert page.evaluate(focused) == "node-c"
        assert page.locator(".gpu.here .name").inner_text() == "gpu-1"
        assert page.locator("#pointed").text_content() == "node-c gpu-1: it is lost"
        page.get_by_role("button", name="Show").click()
        tab.until("() => document.querySelectorAll('.gpu').length === 1")
        assert page.locator(".gpu.fault .room").inner_text().startswith("⚠ unavailable")
    assert tab.wrong == []


def test_it_says_that_the_connection_is_lost_and_comes_back_by_itself(
    world: World, tab: Tab
) -> None:
    busy(world)
    with ExitStack() as first:
        served = first.enter_context(page_for(world))
        tab.open(served.url)
        port = port_of(served)
    status = tab.page.locator("#status")
    tab.page.locator("#status.lost").wait_for()
    assert re.match(r"not connected since .+: no answer", status.inner_text())
    assert tab.count(".gpu") == 3
    end_pod(world, "big-0", "big")
    world.replace_gpus("node-b", gpu(0, "node-b"))
    with page_for(world, port=port):
        tab.live()
        tab.until("() => !document.querySelector('#map').innerText.includes('big-0')")
        tab.page.locator("#told li", has_text="removed").wait_for()
        assert tab.count("#status.lost") == 0
        world.unlead()
        tab.page.locator("#status.lost", has_text="no controller leads").wait_for()


def test_without_the_token_it_says_where_it_is(world: World, tab: Tab) -> None:
    busy(world)
    with page_for(world) as served:
        tab.page.goto(f"{served.address}#token=wrong")
        tab.page.locator("#status.lost", has_text="the address that kubectl mig ui").wait_for()
        assert tab.count(".gpu") == 0
        tab.page.goto(served.url)
        tab.live()
        assert tab.count(".gpu") == 3


@pytest.mark.parametrize(
    "tab",
    [
        {"viewport": {"width": 360, "height": 740}},
        {"viewport": {"width": 320, "height": 600}, "color_scheme": "dark"},
    ],
    indirect=True,
    ids=["360", "320"],
)
def test_on_a_phone_nothing_is_beside_the_screen(world: World, tab: Tab) -> None:
    busy(world)
    long = "x" * 250
    pod = world.api.get(PODS, "waits", namespace="default")
    say_waiting(world, pod, reason=long, message=long)
    world.tell(pod, long[:100], long, source="mig.dra.dev")
    with page_for(world) as served:
        tab.open(served.url)
        tab.page.get_by_role("option", name="waits").click()
        tab.page.locator("#ways").wait_for()
        for summary in tab.page.locator("summary").all():
            summary.click()
        order = "ids => ids.map((id) => document.getElementById(id).getBoundingClientRect().top)"
        tops = tab.page.evaluate(order, ["fleet", "waiting", "search", "nodes", "line"])
        assert tops == sorted(tops)
        beside = tab.page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
        assert beside <= 0


@pytest.mark.parametrize(
    "tab",
    [{"color_scheme": "light"}, {"color_scheme": "dark"}],
    indirect=True,
    ids=["light", "dark"],
)
def test_every_text_has_contrast(world: World, tab: Tab) -> None:
    busy(world)
    with page_for(world) as served:
        tab.open(served.url)
        backs = tab.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        tab.page.get_by_label("Search").fill("trainer")
        tab.until("() => document.querySelectorAll('.slot.dim').length === 2")
        dimmed = tab.page.evaluate(CONTRASTS)
        tab.page.get_by_role("button", name="Clear").click()
        tab.page.get_by_role("option", name="waits").click()
        tab.page.locator("#ways").wait_for()
        found = tab.page.evaluate(CONTRASTS)
    assert dimmed["low"] == found["low"] == []
    assert found["looked"] > 40
    scheme = tab.page.evaluate("() => matchMedia('(prefers-color-scheme: dark)').matches")
    assert backs == ("rgb(13, 16, 21)" if scheme else "rgb(246, 247, 249)")


@pytest.mark.parametrize("bad", HOSTILE, ids=ascii)
def test_what_others_wrote_is_text_and_nothing_else(world: World, tab: Tab, bad: str) -> None:
    busy(world)
    text = bad + "A" * 2**18
    shown = re.sub("[\x00-\x1f\u202e\u2066]", "\ufffd", text)
    pod = world.api.get(PODS, "waits", namespace="default")
    say_waiting(world, pod, reason=bad, message=text[:4000])
    world.tell(pod, bad, text, source="mig.dra.dev")
    found = world.api.get(MIG_NODES, "node-b")["status"]
    found["gpus"][0] |= {"productName": bad[:128]}
    found["gpus"][0]["instances"][0]["message"] = bad
    found["conditions"][0] |= {"status": "False", "message": bad}
    world.set_status(MIG_NODES, {"metadata": {"name": "node-b"}}, found)
    claim = world.api.get(RESOURCE_CLAIMS, "big", namespace="default")
    claim["status"]["reservedFor"][0]["name"] = bad
    world.set_status(RESOURCE_CLAIMS, claim, claim["status"])
    with page_for(world) as served:
        tab.open(served.url)
        page = tab.page
        page.locator("#pods").get_by_role("option").click()
        page.locator("#ways").wait_for()
        page.locator("summary").last.click()
        name = re.sub("[\x00-\x1f\u202e\u2066]", "\ufffd", bad)
        last = page.locator("section.node").last.locator(".slot").first
        assert last.locator(".pod").evaluate("e => e.textContent") == f"⚠ {name}"
        assert f"NOT READY: {name}" in page.locator("#nodes").evaluate("e => e.textContent")
        told = page.locator("#told li", has_text="A" * 50)
        assert told.locator("div").evaluate("e => e.textContent") == shown[:399] + "…"
        assert page.locator("table").last.inner_text().count(name) == 2
        tags = page.evaluate("() => [...document.querySelectorAll('main *')].map((e) => e.tagName)")
        assert not {"IMG", "SCRIPT", "SVG", "STYLE", "BASE", "META", "A"}.intersection(tags)
        assert all(url.startswith(served.address) for url in tab.requests)
        assert page.title() == "MIG slices"
    assert tab.wrong == []
