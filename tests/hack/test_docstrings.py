"""Module docstrings of the programs: the first word is the noun that the module is about."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = ("api", "cdi", "cli", "controller", "dra", "kubeletplugin", "sim")

_QUESTION = re.compile(
    r"(in which|what|who|whose|whom|which|whether|how|when|where|why)\b", re.IGNORECASE
)


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
