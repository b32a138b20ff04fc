"""Rules for DeviceClasses and their names, and for what claims have in common with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from api import config
from api.errors import InvalidObjectError
from cli.linting.documents import Document, Level, Path, Remark
from cli.linting.fields import entries, mapping, text
from dra.cel.questions import CostlySelectorError
from dra.claims.classes import meant, names_driver
from dra.gpu.names import DEFAULT_DRIVER

ANY_SLICE = "mig.dra.dev"

CheckSelector = Callable[[str], str]
"""Fault of a CEL expression; empty when it compiles, or cannot be checked here."""

SelectsOthers = Callable[[tuple[str, ...]], bool]
"""True if all expressions select a device of another driver; False where one does not compile.

Raises:
    CostlySelectorError: to find that out takes more than selectors may have.
"""


def check_class(
    document: Document, check: CheckSelector, selects_others: SelectsOthers
) -> Iterator[Remark]:
    """A DeviceClass: its selectors and its configuration."""
    spec = mapping(document.obj, "spec")
    at = ("spec", "selectors")
    yield from check_selectors(document, at, spec, check)
    texts = [text(mapping(s, "cel"), "expression") for _, s in entries(spec, "selectors")]
    if message := _others_remark(tuple(texts), selects_others):
        yield document.remark(Level.WARNING, at, message)
    for index, entry in entries(spec, "config"):
        yield from check_config(document, ("spec", "config", index), entry)


def _others_remark(texts: tuple[str, ...], selects_others: SelectsOthers) -> str:
    if not any(names_driver(text, DEFAULT_DRIVER) for text in texts):
        return ""
    try:
        if not selects_others(texts):
            return ""
    except CostlySelectorError as error:
        return (
            "it cannot be found out whether it selects devices of other drivers too, and so this "
            f"driver leaves its claims alone: {error}; begin its selector with device.driver == "
            f"'{DEFAULT_DRIVER}' &&, or write it simpler"
        )
    return (
        "it selects devices of other drivers too: kube-scheduler serves its claims, and this "
        f"driver leaves them alone; have it select device.driver == '{DEFAULT_DRIVER}' alone"
    )


def check_config(document: Document, path: Path, entry: dict[str, Any]) -> Iterator[Remark]:
    """An opaque configuration, if it is for this driver."""
    if text(mapping(entry, "opaque"), "driver") != DEFAULT_DRIVER:
        return
    try:
        parameters = mapping(entry, "opaque").get("parameters")
        config.decode_share(parameters, of_class=document.kind == "DeviceClass")
    except InvalidObjectError as error:
        where: Path = (*path, "opaque", "parameters")
        fields = tuple(part for part in error.path.split(".") if part)
        yield document.remark(Level.ERROR, (*where, *fields), str(error))


def check_selectors(
    document: Document, path: Path, body: dict[str, Any], check: CheckSelector
) -> Iterator[Remark]:
    """Selectors in ``body``, which stand at ``path``: those that do not compile."""
    for index, selector in entries(body, "selectors"):
        expression = text(mapping(selector, "cel"), "expression")
        problem = check(expression) if expression else ""
        if problem:
            where = (*path, index, "cel", "expression")
            yield document.remark(Level.ERROR, where, f"the expression does not compile: {problem}")


def bad_class(name: str) -> str:
    """Fault of the name of a class, if it was meant to be one of ours."""
    right = meant(name)
    if right in ("", name):
        return ""
    return f"no profile has class {name!r}; did you mean {right!r}?"
