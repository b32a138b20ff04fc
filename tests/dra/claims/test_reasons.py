"""One word for one reason: events, conditions, taints, MigNodes and explanations share them."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

from cli.explaining.findings import Why
from dra.allocator.explain.answers import AnswerReason
from dra.claims.conditions import PREPARE_FAILED
from dra.claims.reasons import NodeReason, Reason
from dra.gpu.inventory import GpuReason
from dra.pods.nodefit import MisfitReason

ROOT = Path(__file__).parents[3]
KINDS = (Reason, NodeReason, GpuReason, AnswerReason, MisfitReason, Why)
OTHERS = {"Allocated": "the state of a claim in explanations, and the event when it got there"}


def test_a_reason_is_spelt_in_one_place() -> None:
    words = {str(reason) for kind in KINDS for reason in kind} | {PREPARE_FAILED}
    spelt = Counter(text for text in _texts(words) if text in words)
    assert set(spelt) == words
    twice = {word for word, times in spelt.items() if times > 1} - OTHERS.keys()
    assert not twice, f"{sorted(twice)}: refer to the enumeration that has it"


def _texts(words: Collection[str]) -> Iterator[str]:
    """Texts in the modules that have any of the words, none of them part of a longer one."""
    for folder in ("dra", "controller", "kubeletplugin", "cli"):
        for path in (ROOT / folder).rglob("*.py"):
            code = path.read_text()
            if not any(word in code for word in words):
                continue  # most of them, and to parse one takes long
            for node in ast.walk(ast.parse(code)):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value
