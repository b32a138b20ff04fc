"""The picture of a terminal."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from hack.picture import render

_NS = "{http://www.w3.org/2000/svg}"


def test_a_picture_has_the_words_and_the_colours_and_nothing_of_another_server() -> None:
    text = "\x1b[1mnode\x1b[0m  & <x>\n│\x1b[30;48;5;114m1g.5gb \x1b[0m│"
    drawn = render("kubectl mig map", text)
    made = ET.fromstring(drawn)
    words = "".join(t.text or "" for t in made.iter(f"{_NS}text")).replace("\xa0", " ")
    for word in ("$ kubectl mig map", "node", "& <x>", "1g.5gb"):
        assert word in words
    assert "#87d787" in {r.get("fill") for r in made.iter(f"{_NS}rect")}
    assert "https://" not in drawn.replace("https://www.textualize.io", "")
