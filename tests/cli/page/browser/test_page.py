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


def test_it_loads_and_asks_nobody_else(world: World, tab: Tab) -> None:
    busy(world)
    with page_for(world) as served:
        tab.open(served.url)
        page = tab.page
        assert page.locator("#totals").inner_text() == "2 nodes, 3 GPUs"
        assert page.get_by_role("region", name="node node-a").is_visible()
        assert page.get_by_role("list", name="node-a gpu-0").get_by_role("listitem").count() == 4
        assert tab.slots() == [
            "1g.5gb default/notebook",
            "1g.5gb foreign",
            "3g.20gb default/trainer-0",
            "4g.20gb default/big-0",
        ]
        assert page.get_by_role("option", name="default/waits").is_visible()
        assert page.locator("#told li").inner_text().splitlines()[-1] == "no GPU has room"
        assert "ECC errors: look at nvidia-smi -q" in page.locator(".away").inner_text()
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
            "removed default/big-0 4g.20gb on node-b gpu-0 at 0:4 (seen)"
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
        assert page.locator("#totals").inner_text().startswith("1 of 3 nodes")
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
        assert page.evaluate("() => document.activeElement.textContent") == "Skip to the map"
        order = []
        for _ in range(8):
            page.keyboard.press("Tab")
            order.append(
                page.evaluate("() => document.activeElement.id || document.activeElement.tagName")
            )
            outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
            assert outline == "solid"
        assert order == [
            "search",
            "namespace",
            "product",
            "state",
            "BUTTON",
            "pods",
            "told",
            "SUMMARY",
        ]
        page.keyboard.press("w")
        page.keyboard.press("Enter")
        page.locator("#next").wait_for()
        assert (
            page.locator("#pods")
            .get_by_role("option", selected=True)
            .inner_text()
            .startswith("default/waits")
        )
        assert page.locator("#why").inner_text().count("NoRoom") == 1
        marked = page.locator(".slot.blocks").all_inner_texts()
        assert len(marked) == 4
        assert all(text.startswith("▲ ") for text in marked)
        page.keyboard.press("n")
        assert page.locator("#places").inner_text() == "1 of 2: node-b gpu-0"
        page.keyboard.press("n")
        assert page.locator("#places").inner_text() == "2 of 2: node-a gpu-0"
        assert page.locator(".gpu.here").locator(".name").inner_text() == "gpu-0"
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
            *("gpu-0", "0:4", "4g.20gb", "prepared", "default", "big-0", "big"),
        ]
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
        tab.page.get_by_role("option", name="default/waits").click()
        tab.page.locator("#next").wait_for()
        for summary in tab.page.locator("summary").all():
            summary.click()
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
        tab.page.get_by_role("option", name="default/waits").click()
        tab.page.locator("#next").wait_for()
        found = tab.page.evaluate(CONTRASTS)
    assert dimmed["low"] == found["low"] == []
    assert found["looked"] > 40
    scheme = tab.page.evaluate("() => matchMedia('(prefers-color-scheme: dark)').matches")
    assert backs == ("rgb(20, 22, 26)" if scheme else "rgb(255, 255, 255)")


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
        page.locator("#next").wait_for()
        page.locator("summary").last.click()
        name = re.sub("[\x00-\x1f\u202e\u2066]", "\ufffd", bad)
        last = page.locator("section.node").last.locator(".slot").first
        assert last.locator("span").last.evaluate("e => e.textContent") == f"default/{name}"
        assert f"NOT READY: {name}" in page.locator("#nodes").evaluate("e => e.textContent")
        told = page.locator("#told li", has_text="A" * 50)
        assert told.locator("div").evaluate("e => e.textContent") == shown[:399] + "…"
        assert page.locator("table").last.inner_text().count(name) == 2
        tags = page.evaluate("() => [...document.querySelectorAll('main *')].map((e) => e.tagName)")
        assert not {"IMG", "SCRIPT", "SVG", "STYLE", "BASE", "META", "A"}.intersection(tags)
        assert all(url.startswith(served.address) for url in tab.requests)
        assert page.title() == "MIG slices"
    assert tab.wrong == []
