"""The evaluation of selectors, in a process of its own: a manifest may hold any CEL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from cli.exits import CliError, Exit
from dra.cel.questions import Evaluator
from dra.sandbox.process import Sandbox, SandboxError

_NEEDED = ("cel_expr_python", "re2")


def missing_module() -> str:
    """The first module that evaluating needs and that is not installed; empty when all are."""
    return next((name for name in _NEEDED if find_spec(name) is None), "")


@contextmanager
def evaluator() -> Iterator[Evaluator]:
    """Evaluator of selectors. Raises CliError where they cannot be evaluated."""
    sandbox = Sandbox()
    try:
        yield sandbox
    except SandboxError as error:
        raise CliError(Exit.FINDING, f"{error}; try again") from error
    finally:
        sandbox.close()
