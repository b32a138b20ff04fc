"""Docstrings: the first word is the noun that the thing is about, or the verb of what it does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("api", "cdi", "cli", "controller", "dra", "hack", "kubeletplugin", "sim")

_QUESTION = re.compile(
    r"(in which|what|who|whose|whom|which|whether|how|when|where|why)\b", re.IGNORECASE
)
_BOUND = re.compile(r"(after )?so (many|much|long|often)\b", re.IGNORECASE)


def docstrings(folder: str) -> Iterator[tuple[str, str]]:
    """Place and text of every docstring, those of constants and fields among them."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            value = node.value if isinstance(node, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield f"{name}:{value.lineno}", value.value.strip()


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_docstring_begins_with_a_question_word_or_with_so_many(folder: str) -> None:
    found = [
        f"{place}: {text.splitlines()[0]}"
        for place, text in docstrings(folder)
        if _QUESTION.match(text) or _BOUND.match(text)
    ]
    assert not found, (
        "say the subject first ('Names of GPUs: ...' and not 'Which GPU has which name', "
        "'True if ...', 'Reason why ...', 'Upper bound on ...'):\n" + "\n".join(found)
    )
