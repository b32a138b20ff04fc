"""Docstrings: the first word is the noun that the thing is about, or the verb of what it does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = ("api", "cdi", "cli", "controller", "dra", "kubeletplugin", "sim")
WHOLE = (
    *("api", "cdi", "cli", "hack", "kubeletplugin", "sim"),
    *(f"controller/{room}" for room in ("lifecycle", "queue", "reporting", "webhook", "writing")),
    *("dra/cel", "dra/claims", "dra/common", "dra/gpu", "dra/kube", "dra/monitoring"),
    *(f"dra/allocator/{room}" for room in ("explain", "fleet", "scoring")),
    *("dra/pods", "dra/resourceslices", "dra/sandbox"),
)
"""Folders in which classes, functions and constants are held to it too."""

_QUESTION = re.compile(
    r"(in which|what|who|whose|whom|which|whether|how|when|where|why)\b", re.IGNORECASE
)


_BOUND = re.compile(r"so (many|much|long|often)\b", re.IGNORECASE)


def questions(program: str) -> list[str]:
    """Modules whose docstring begins with a question word, and the beginning of each."""
    found = []
    for path in sorted((ROOT / program).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        if _QUESTION.match(text):
            found.append(f"{name}: {text.splitlines()[0]}")
    return found


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_module_docstring_begins_with_a_question_word(program: str) -> None:
    assert not (found := questions(program)), (
        "begin each module docstring with the noun that the module is about ('Names of GPUs: ...' "
        "and not 'Which GPU has which name'):\n" + "\n".join(found)
    )


def docstrings(folder: str) -> Iterator[tuple[str, str]]:
    """Place and text of every docstring, those of constants and fields among them."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            value = node.value if isinstance(node, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield f"{name}:{value.lineno}", value.value.strip()


@pytest.mark.parametrize("folder", WHOLE)
def test_no_docstring_begins_with_a_question_word_or_with_so_many(folder: str) -> None:
    found = [
        f"{place}: {text.splitlines()[0]}"
        for place, text in docstrings(folder)
        if _QUESTION.match(text) or _BOUND.match(text)
    ]
    assert not found, (
        "say the subject first ('True if ...', 'Reason why ...', 'Upper bound on ...'):\n"
        + "\n".join(found)
    )
