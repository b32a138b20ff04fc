"""Helpers refuse a keyword that is mistyped, rather than pass on or drop what nobody reads."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from dra.common.resources import Obj
from tests.controller.helpers import needs, objects, volumes

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("mistake", "meant"),
    [
        (lambda: objects.pod("p", nodeNam="n"), "nodeName"),
        (lambda: objects.node("n", taint=[]), "taints"),
        (lambda: objects.request("r", "class", allocation_mode="All"), "allocationMode"),
        (lambda: objects.device_class("c", "true", configs=[]), "config"),
        (lambda: volumes.volume("v", capacities={}), "capacity"),
        (lambda: volumes.volume_claim("v", volumename="v"), "volumeName"),
        (lambda: needs.affine("zone", None, namespace=["n"]), "namespaces"),
        (lambda: needs.spread("zone", None, minDomain=2), "minDomains"),
    ],
)
def test_a_field_that_kubernetes_does_not_know_is_refused(
    mistake: Callable[[], Obj], meant: str
) -> None:
    with pytest.raises(TypeError, match=f"did you mean '{meant}'"):
        mistake()


def test_no_helper_swallows_keywords() -> None:
    """Tests' own stand-ins aside, which are called by the program."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        if path.name.startswith("test_"):
            continue
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and function.args.kwarg is not None:
                name = function.args.kwarg.arg
                uses = (n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name)
                if not any(uses):
                    found.append(f"{path}:{function.lineno}: **{name}")
    assert not found, f"name the arguments that are taken: {found}"
