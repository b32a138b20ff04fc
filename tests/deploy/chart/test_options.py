"""Every option of the programs can be set by a value of the chart, or the chart says why not."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
import yaml

from dra.common.resources import Obj
from hack.cluster.chart import CHART, REPOSITORY, pod_spec, render
from hack.handbook import on_page_markdown
from kubeletplugin.host.libraries import LIBRARY_DIRECTORIES
from tests.deploy.chart.options import BY_THE_CHART, BY_VALUE, PROGRAMS, Program, nested, options

HERE = "tests/deploy/chart/options.py"
MINE = CHART.relative_to(REPOSITORY)
PAGE = "docs/configuration.md"


def started(program: Program, values: Obj) -> dict[str, Any]:
    """What the program that the chart starts with these values makes of its arguments."""
    (container,) = pod_spec(render(_merged(program.values, values)), program.component)[
        "containers"
    ]
    given = [re.sub(r"\$\(([A-Z_]+)\)", r"\1", each) for each in container["args"]]
    return program.command.make_context("program", given).params


@functools.cache
def defaults(name: str) -> dict[str, Any]:
    """The program's options from the arguments that the chart gives it without any values."""
    return started(PROGRAMS[name], {})


def _merged(one: Obj, other: Obj) -> Obj:
    both = dict(one)
    for key, value in other.items():
        both[key] = _merged(one.get(key, {}), value) if isinstance(value, dict) else value
    return both


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_option_is_a_value_of_the_chart_or_has_a_reason(name: str) -> None:
    program, known = PROGRAMS[name], BY_VALUE[name].keys() | BY_THE_CHART[name].keys()
    listed = options(program).keys()
    for option in sorted(listed - known):
        pytest.fail(
            f"{option} of `python -m {program.module}` is no value of the chart. Add one: render "
            f"it in {MINE}/templates/{program.template}, with its default and a reason in "
            f"{MINE}/values.yaml, its type in {MINE}/values.schema.json, a row in {PAGE} under "
            f"'The programs', and a row in BY_VALUE of {HERE}. Where the chart must set it itself, "
            f"say why in BY_THE_CHART there."
        )
    for option in sorted(known - listed):
        pytest.fail(
            f"`python -m {program.module}` has no option {option} any more: take it out of {HERE}, "
            f"{PAGE} and {MINE} (values.yaml, values.schema.json, templates/{program.template})"
        )


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_value_reaches_the_program(name: str) -> None:
    program, values = PROGRAMS[name], dict[str, Any]()
    for path, value, _ in BY_VALUE[name].values():
        values = _merged(values, nested(path, value))
    seen = started(program, values)
    for option, (path, value, expected) in BY_VALUE[name].items():
        parameter = options(program)[option].name
        assert parameter
        assert defaults(name)[parameter] != expected, f"{path}: {value} is the default"
        assert seen[parameter] == expected, (
            f"{path} of values.yaml does not set {option}: {MINE}/templates/{program.template}"
        )


OWN_DEFAULTS = {
    "--metrics-address",  # of a person who starts a program, the port may be taken
    "--finalizer-at-creation",  # goes with the policy that the chart makes
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_chart_and_the_program_have_the_same_defaults(name: str) -> None:
    program = PROGRAMS[name]
    known = options(program)
    required = [f"{key}=x" for key, each in known.items() if each.required]
    own = program.command.make_context("program", required).params
    for option in BY_VALUE[name].keys() - OWN_DEFAULTS:
        chosen = known[option].name
        assert chosen
        assert defaults(name)[chosen] == own[chosen], (
            f"{BY_VALUE[name][option][0]} in {MINE}/values.yaml and {option} of `python -m {name}` "
            "have different defaults"
        )


def test_every_option_and_value_is_in_the_handbook() -> None:
    page = on_page_markdown((REPOSITORY / PAGE).read_text())
    for name, program in PROGRAMS.items():
        section = _section(page, f"`python -m {program.module}`")
        found = re.findall(r"^\| `(--[a-z-]+)` \| (.+?) \| (.*?) \|$", section, re.MULTILINE)
        rows = {option: value for option, value, _ in found}
        for option, _, words in found:
            assert words, f"nobody says what {option} does"
        for option, (path, _, _) in BY_VALUE[name].items():
            assert rows.pop(option, None) == f"`{path}`", f"{option} of {program.module}: {PAGE}"
        for option in BY_THE_CHART[name]:
            assert rows.pop(option, None) == "-", f"{option} of {program.module}: {PAGE}"
        assert rows == {}
    values = set(re.findall(r"^\| `([\w.]+)` \|", page.partition("## The chart")[2], re.MULTILINE))
    assert values >= {path for options in BY_VALUE.values() for path, _, _ in options.values()}
    assert len(values) > len({path for each in BY_VALUE.values() for path, _, _ in each.values()})


def _section(page: str, heading: str) -> str:
    match = re.search(rf"^### {re.escape(heading)}$(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
    assert match, f"no heading '### {heading}' in {PAGE}"
    return match[1]


@pytest.mark.parametrize("name", PROGRAMS)
def test_further_arguments_and_variables_reach_the_program(name: str) -> None:
    program = PROGRAMS[name]
    group = {"kubelet-plugin": "kubeletPlugin"}.get(program.component, program.component)
    values = {
        group: {
            "extraArgs": ["--log-level=warning", "--driver-name=last.example"],
            "extraEnv": [
                {"name": "KUBERNETES_SERVICE_HOST", "value": "192.0.2.7"},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
            ],
        }
    }
    seen = started(program, values)
    assert (seen["log_level"], seen["driver_name"]) == ("warning", "last.example")
    (container,) = pod_spec(render(_merged(program.values, values)), program.component)[
        "containers"
    ]
    assert container["env"][-2:] == values[group]["extraEnv"]


def test_another_place_for_the_journal_is_mounted_from_the_node() -> None:
    spec = pod_spec(render({"kubeletPlugin": {"stateDir": "/srv/state"}}), "kubelet-plugin")
    (volume,) = (each for each in spec["volumes"] if each["name"] == "state")
    assert volume["hostPath"] == {"path": "/srv/state", "type": "DirectoryOrCreate"}
    (container,) = spec["containers"]
    shown = {"mountPropagation": "Bidirectional"}  # what is mounted there is the containers' too
    assert {"name": "state", "mountPath": "/srv/state", **shown} in container["volumeMounts"]


def test_the_chart_s_directories_of_libraries_are_the_program_s() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert tuple(values["kubeletPlugin"]["libraryDirectories"]) == LIBRARY_DIRECTORIES
