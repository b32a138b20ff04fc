"""Spelling of CEL expressions: Kubernetes' own, rewritten for the CEL runtime of this process.

The runtime takes no further overloads of its own functions and no macros of ours. Our functions
cannot return optionals, and the runtime has no function to insert into maps. What is missing is
rewritten call by call:

    l.indexOf(x), l.lastIndexOf(x)     l.indexOf_(x): ours, for lists and strings
    m.exists_one(k, v, p)              m.existsOne(k, v, p)
    m.transformMap(k, v, e)            m.transformList(k, v, [k, e]).toMap_()
    m.transformMapEntry(k, v, e)       m.transformList(k, v, e).toMerged_()
    format.named(n)                    format.named(n)[?0]: ours returns a list of one or none
    f.validate(x)                      f.validate(x)[?0]
    l.unwrapOpt(), optional.unwrap(l)  l.filter(o_, o_.hasValue()).map(o_, o_.value())
    lists.range(n)                     lists.range_(n): ours, of bounded length
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

TOKEN = re.compile(
    r"""
      (?P<text> (?i:rb?|br) (?: \"{3}.*?\"{3} | '{3}.*?'{3} | "[^"\n]*" | '[^'\n]*' )
              | (?i:b?) (?: \"{3}(?:\\.|[^\\])*?\"{3} | '{3}(?:\\.|[^\\])*?'{3}
                          | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' ) )
    | (?P<blank> \s+ | //[^\n]* )
    | (?P<word> [A-Za-z_]\w* )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_PLACE = re.compile(r"(?<=<input>:)(\d+):(\d+)")
_ORIGINALS = {
    "indexOf_": "indexOf",
    "lastIndexOf_": "lastIndexOf",
    "range_": "range",
    "toMap_": "transformMap",
    "toMerged_": "transformMapEntry",
}
_OURS = re.compile(rf"\b(?:{'|'.join(_ORIGINALS)})(?!\w)")
_UNWRAPPED = "filter(o_, o_.hasValue()).map(o_, o_.value())"
_OF_TWO = 3
"""Least number of arguments of a macro with two variables."""


class _Token(NamedTuple):
    text: str
    start: int
    end: int


class _Edit(NamedTuple):
    """Puts ``text`` in the place of what is between two offsets."""

    start: int
    end: int
    text: str


@dataclass(slots=True)
class _Call:
    """A pair of brackets, and the function that is called with them.

    ``callee``: ``.name`` of a method, ``name`` or ``a.b`` of a function, empty if nothing is
    called. ``start``: offset at which the callee's first word begins. ``name``: the callee's last
    word. ``bounds``: offsets of the brackets and of the commas between them.
    """

    callee: str
    start: int
    name: _Token
    bounds: list[int]

    def arguments(self, expression: str) -> list[str]:
        pairs = zip(self.bounds, self.bounds[1:], strict=False)
        texts = [expression[a + 1 : b] for a, b in pairs]
        return texts if len(texts) > 1 or texts[0].strip() else []


@dataclass(frozen=True, slots=True)
class Spelling:
    """``text``, made from ``expression`` by ``edits``, is what the runtime reads."""

    expression: str
    text: str
    edits: tuple[_Edit, ...]

    def original(self, message: str) -> str:
        """A message of the compiler, with the places and names of the original expression."""
        return _OURS.sub(lambda m: _ORIGINALS[m[0]], _PLACE.sub(self._place, message))

    def _place(self, match: re.Match[str]) -> str:
        lines = self.text.splitlines(keepends=True)
        offset = sum(len(line) for line in lines[: int(match[1]) - 1]) + int(match[2]) - 1
        grown = 0
        for edit in self.edits:
            start = edit.start + grown
            if offset < start:
                break
            if offset < start + len(edit.text):
                offset = start + min(offset - start, edit.end - edit.start)
                break
            grown += len(edit.text) - (edit.end - edit.start)
        before = self.expression[: offset - grown]
        return f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


def respelt(expression: str) -> Spelling:
    """``expression`` rewritten for the runtime; unchanged where brackets do not match."""
    edits = tuple(sorted(_edits(expression), key=lambda edit: edit[:2]))
    pieces, position = [], 0
    for edit in edits:
        pieces += [expression[position : edit.start], edit.text]
        position = edit.end
    return Spelling(expression, "".join(pieces) + expression[position:], edits)


def _edits(expression: str) -> list[_Edit]:
    found: list[_Edit] = []
    open_: list[_Call] = []
    before: list[_Token] = []
    for match in TOKEN.finditer(expression):
        if match.lastgroup == "blank":
            continue
        token = _Token(match[0], *match.span())
        if token.text in ("(", "[", "{"):
            open_.append(_called(before, token))
        elif token.text == "," and open_:
            open_[-1].bounds.append(token.start)
        elif token.text in (")", "]", "}"):
            if not open_:
                return []
            call = open_.pop()
            call.bounds.append(token.start)
            found += _changes(call, expression)
        before = [*before[-3:], token]
    return [] if open_ else found


def _called(before: list[_Token], bracket: _Token) -> _Call:
    """Function called before a bracket; ``before`` are the last four tokens."""
    nothing = _Token("", bracket.start, bracket.start)
    if bracket.text != "(" or not before or not _WORD.fullmatch(before[-1].text):
        return _Call("", bracket.start, nothing, [bracket.start])
    name = before[-1]
    texts = [token.text for token in before]
    if texts[-2:-1] != ["."]:
        return _Call(name.text, name.start, name, [bracket.start])
    qualified = len(texts) > 2 and _WORD.fullmatch(texts[-3]) and texts[-4:-3] != ["."]  # noqa: PLR2004
    if qualified and f"{texts[-3]}.{name.text}" in _QUALIFIED:
        return _Call(f"{texts[-3]}.{name.text}", before[-3].start, name, [bracket.start])
    return _Call(f".{name.text}", name.start, name, [bracket.start])


_QUALIFIED = frozenset({"lists.range", "format.named", "optional.unwrap"})


def _changes(call: _Call, expression: str) -> Iterator[_Edit]:
    arguments = call.arguments(expression)
    name, count, close = call.name, len(arguments), call.bounds[-1]
    renamed = {
        ".indexOf": "indexOf_",
        ".lastIndexOf": "lastIndexOf_",
        "lists.range": "range_",
        ".exists_one": "existsOne" if count == _OF_TWO else "exists_one",
    }.get(call.callee)
    if renamed is not None:
        yield _Edit(name.start, name.end, renamed)
    elif call.callee in (".transformMap", ".transformMapEntry") and count >= _OF_TWO:
        yield _Edit(name.start, name.end, "transformList")
        if call.callee == ".transformMap":
            last = call.bounds[-2] + 1
            yield _Edit(last, last, f"[{arguments[0].strip()}, ")
            yield _Edit(close, close, "]")
        ending = ".toMap_()" if call.callee == ".transformMap" else ".toMerged_()"
        yield _Edit(close + 1, close + 1, ending)
    elif call.callee in (".validate", "format.named"):
        yield _Edit(close + 1, close + 1, "[?0]")
    elif call.callee == ".unwrapOpt" and not count:
        yield _Edit(name.start, close + 1, _UNWRAPPED)
    elif call.callee == "optional.unwrap" and count == 1:
        yield _Edit(call.start, name.end, "")
        yield _Edit(close + 1, close + 1, f".{_UNWRAPPED}")
