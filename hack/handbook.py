"""Tables of the handbook that the code and the chart have already, for ``make docs``.

mkdocs puts a table in the place of its marker: ``<!-- table: NAME -->``, alone on a line of a page.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import CollectorRegistry

from controller.report.metrics import ControllerMetrics
from dra.monitoring.metrics import ApiRequests, CountingSink, daemon_registry
from kubeletplugin.journal.journal import Journal
from kubeletplugin.telemetry.probes import Readiness
from kubeletplugin.telemetry.telemetry import Telemetry

ROOT = Path(__file__).parents[1]
VALUES = ROOT / "deploy/helm/dra-driver-nvidia-mig/values.yaml"
ROOMS = ("api", "cdi", "dra", "controller", "kubeletplugin", "cli", "sim", "hack")
_MARKER = re.compile(r"^<!-- table: (\w+) -->$", re.MULTILINE)
_SHOWN = 40
"""Characters of a default that are shown."""


def on_page_markdown(markdown: str, **_: object) -> str:
    """Return a page with its tables; mkdocs calls this for each."""
    return _MARKER.sub(lambda found: TABLES[found[1]](), markdown)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = ([c.replace("|", "\\|").replace("<", "&lt;") for c in row] for row in rows)
    lines = [head, ["---"] * len(head), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def rooms() -> str:
    """The packages, and the first sentence of each."""
    packages = sorted(path for room in ROOMS for path in (ROOT / room).rglob("__init__.py"))
    told = ((path, ast.get_docstring(ast.parse(path.read_text())) or "") for path in packages)
    return _table(
        ("room", "holds"),
        (
            (f"`{path.parent.relative_to(ROOT)}/`", text.partition("\n\n")[0].replace("\n", " "))
            for path, text in told
            if text
        ),
    )


def values() -> str:
    """The values of the chart, their defaults, and the comments of ``values.yaml``."""
    text = VALUES.read_text()
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    found = _leaves(root, text.splitlines(), (), "") if root else ()
    return _table(("value", "default", "what it is"), found)


def _leaves(
    node: yaml.Node, lines: Sequence[str], path: tuple[str, ...], above: str
) -> Iterator[tuple[str, str, str]]:
    for key, value in node.value:
        name, line = (*path, str(key.value)), key.start_mark.line
        first = line
        while lines[first - 1].strip().startswith("#"):
            first -= 1
        said = " ".join(each.strip().removeprefix("#").strip() for each in lines[first:line])
        if isinstance(value, yaml.MappingNode) and value.value and not value.flow_style:
            yield from _leaves(value, lines, name, said or above)
            continue
        default = json.dumps(yaml.SafeLoader("").construct_object(value, deep=True))
        shown = default if len(default) <= _SHOWN else f"{default[:_SHOWN]}…"
        yield f"`{'.'.join(name)}`", f"`{shown}`", said or above


def program_options(module: str) -> str:
    """The options of a program, the value of the chart that sets each, and what it does."""
    # The tests hold this list against the chart and the programs; mkdocs does not look there.
    sys.path.append(str(ROOT))
    from tests.deploy.chart.options import BY_THE_CHART, BY_VALUE, PROGRAMS, options  # noqa: PLC0415

    rows = [
        (f"`{name}`", f"`{BY_VALUE[module][name][0]}`" if name in BY_VALUE[module] else "-", help_)
        for name, each in options(PROGRAMS[module]).items()
        if (help_ := each.help or BY_THE_CHART[module].get(name, ""))
    ]
    return _table(("option", "value", "what it does"), rows)


class _Nobody:
    def emit(self, regarding: object, reason: str, message: str, *, warning: bool = False) -> None:
        """Tell nobody."""


def registry_of_controller() -> CollectorRegistry:
    """The metrics of the controller alone."""
    registry = CollectorRegistry()
    ControllerMetrics(registry, leads=lambda: True, now=lambda: datetime.now(UTC))
    return registry


def registry_of_plugin(folder: Path) -> CollectorRegistry:
    """The metrics of the plugin alone."""
    telemetry = Telemetry()
    readiness = Readiness(on_change=lambda: None)
    telemetry.watch(lambda: (), Journal(folder / "journal.json"), readiness)
    return telemetry.registry


def registry_of_both() -> CollectorRegistry:
    """The metrics that both programs have."""
    registry = daemon_registry()
    ApiRequests(registry)
    CountingSink(_Nobody(), registry)
    return registry


def metrics() -> str:
    """The metrics of both programs, with type, labels and the text that Prometheus reads."""
    with tempfile.TemporaryDirectory() as folder:
        registries = {
            "controller": registry_of_controller(),
            "plugin": registry_of_plugin(Path(folder)),
            "both": registry_of_both(),
        }
        rows = [
            (f"`{name}`", who, kind, ", ".join(f"`{each}`" for each in labels), text)
            for who, registry in registries.items()
            for name, kind, labels, text in families(registry)
        ]
    return _table(("metric", "of", "type", "labels", "meaning"), rows)


def families(registry: CollectorRegistry) -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    """Name, type, labels and text of each metric, whether it has samples yet or not."""
    for collector in registry._collector_to_names:  # noqa: SLF001 - there is no other list
        for family in collector.collect():
            parent: Any = collector if hasattr(collector, "_labelnames") else family
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = tuple(getattr(parent, "_labelnames", ()))
            yield name, family.type, labels, family.documentation


TABLES: dict[str, Callable[[], str]] = {
    "rooms": rooms,
    "values": values,
    "options_of_controller": lambda: program_options("controller"),
    "options_of_plugin": lambda: program_options("kubeletplugin"),
    "metrics": metrics,
}
