"""The picture of a terminal."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from hack.picture import render

_NS = "{http://www.w3.org/2000/svg}"


def shown(text: str) -> ET.Element:
    return ET.fromstring(render("kubectl mig map", text))


def test_words_stand_in_their_columns_with_their_colours() -> None:
    texts = list(shown("\x1b[1mnode\x1b[0m  \x1b[33mdrained\x1b[0m & <x>").iter(f"{_NS}text"))
    assert [t.text for t in texts] == ["$", "kubectl mig map", "node", "drained", "& <x>"]
    _, _, node, drained, rest = texts
    assert node.get("font-weight") == "bold"
    assert drained.get("fill") == "#e5c07b"
    width = float(node.attrib["textLength"]) / len("node")
    at = float(node.attrib["x"])
    assert float(drained.attrib["x"]) == round(at + 6 * width, 1)
    assert float(rest.attrib["x"]) == round(at + 14 * width, 1)


def test_slices_have_their_background_and_borders_are_drawn() -> None:
    made = shown("│\x1b[30;48;5;114m1g.5gb \x1b[0m│░░│")
    boxes = [r.get("fill") for r in made.iter(f"{_NS}rect")][1:]
    assert boxes == ["#d7dae0", "#87d787", "#d7dae0", "#d7dae0", "#d7dae0"]
    assert not any("│" in (t.text or "") for t in made.iter(f"{_NS}text"))
