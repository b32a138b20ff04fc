"""Selectors that want more than there is, each in a way of its own; the API server admits many."""

from __future__ import annotations


def busy(word: str = "a", *, rounds: int = 9000) -> str:
    """Little memory and much time."""
    text = f"'{word * 5000}'"
    return f"lists.range({rounds}).all(x, {text}.replace('{word}', 'b').size() > x - x)"


TEXT = "a" * 1000
QUADRUPLED = "x + x + x + x"

TOO_MUCH = {
    "chained replace": (
        f"'{TEXT}'.replace('a', '{'b' * 1000}').replace('b', '{'c' * 1000}').size() > 0"
    ),
    "chained replace of pieces": (
        f"'{TEXT}'.replace('a', '{'bd' * 500}').replace('d', '{'ce' * 500}').endsWith('x')"
    ),
    "replace of nothing": f"'{TEXT}'.replace('', '{TEXT}').replace('', '{TEXT}').size() > 0",
    "growing by plus": (
        f"['{'a' * 5000}']" + f".map(x, {QUADRUPLED})" * 8 + ".exists(x, x.size() == 1)"
    ),
    "growing by join": f"lists.range(9000).map(x, '{'a' * 9000}').join('{TEXT}').size() > 0",
    "growing by format": (
        "'%s%s%s%s'.format(["
        + ", ".join(f"'{TEXT}'.replace('a', '{'b' * 1000}')" for _ in range(4))
        + f"]).replace('b', '{'c' * 100}').size() > 0"
    ),
    "lists of lists": "lists.range(9000).map(x, lists.range(9000)).size() > 0",
    "lists by flatten": "lists.range(9000).map(x, lists.range(900)).flatten().size() > 0",
    "pieces by split": (
        f"'{'a,' * 2000}'.split(',').map(x, '{'b,' * 1000}'.split(',')).flatten().size() > 0"
    ),
    "loops": busy(),
    "sorted texts": "lists.range(9000).map(x, string(9000 - x)).sort().size() > 0",
    "sets of lists": "sets.contains(lists.range(9000), lists.range(9000))",
    "nested optionals": "optional.of(device)" + ".optMap(d, d)" * 300 + ".hasValue()",
    "many copies of the device": "lists.range(9000).map(x, device).size() > 0",
}
"""Over a limit, of time or of memory."""

BOUNDED = {
    "loops in loops": (
        "lists.range(99).all(a, lists.range(99).all(b, lists.range(99).all(c, a + b + c >= 0)))"
    ),
    "regex of repetitions": f"'{'a' * 4000}b'.matches('^(a|aa|a*)*$')",
    "regex of counts": f"'{'a' * 900}'.matches('((a{{0,90}}){{0,9}}){{0,1}}')",
    "regex of counts of counts": "'a'.matches('(((a{0,30}){0,30}){0,30}){0,30}')",
    "wide format": "'%900000000d'.format([1]) != ''",
    "find all": f"'{'a' * 9000}'.findAll('a').size() > 0",
    "long quantity": f"quantity('{'9' * 9000}').isGreaterThan(quantity('1'))",
    "huge exponent": "quantity('9e999').sub(quantity('9e-999')).isInteger()",
    "many version parts": f"semver('1.2.3-{'1.' * 3000}1').isLessThan(semver('1.2.4'))",
    "no version": f"isSemver('1.2.3-{'a-' * 4000}!')",
    "deep brackets": "(" * 400 + "true" + ")" * 400,
    "deep lists": "[" * 300 + "]" * 300 + ".size() == 0",
    "deep negation": "!" * 999 + "true",
    "deep choices": "true ? (" * 90 + "true" + ") : false" * 90,
    "brackets in a text": f"'{'a[' * 4500}' == ''",
    "a sum of many": " + ".join(["1"] * 2400) + " > 0",
    "many comparisons": " && ".join(["device.driver == 'x'"] * 400),
    "error with a long text": f"device.attributes['{'a' * 9000}'].b == 'c'",
}
"""Within the limits, or refused at once."""
