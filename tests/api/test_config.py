from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from api.config import (
    API_VERSION,
    DEFAULT,
    KIND,
    DeviceConfig,
    NodesConfig,
    PlacementPolicy,
    decode,
    decode_named,
    encode,
)
from api.errors import InvalidObjectError

HEAD = {"apiVersion": API_VERSION, "kind": KIND}


def with_nodes(nodes: Any) -> dict[str, Any]:
    return {**HEAD, "placement": {"nodes": nodes}}


def _fields(struct: type[msgspec.Struct]) -> Iterator[str]:
    for field in msgspec.structs.fields(struct):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _fields(field.type)
        else:
            yield field.name


def test_every_field_is_read_by_a_program() -> None:
    tops = ("api", "controller", "dra", "kubeletplugin")
    texts = (p.read_text() for top in tops for p in Path(top).rglob("*.py"))
    unread = {*_fields(DeviceConfig)} - {w for text in texts for w in re.findall(r"\.(\w+)", text)}
    assert not unread, f"api/config.py takes {sorted(unread)}, and no program does anything by it"


def test_a_configuration_says_only_what_differs_from_the_default() -> None:
    assert decode(HEAD) == DEFAULT
    assert decode({**HEAD, "placement": {"policy": "spread"}}).placement.policy == "spread"
    assert decode(encode(DEFAULT)) == DEFAULT
    assert DEFAULT.placement.nodes.policy == "none"


@pytest.mark.parametrize(
    ("parameters", "allowed"),
    [
        ({"placement": {"policy": "random"}}, ", ".join(get_args(PlacementPolicy))),
        ({"placement": {"policy": 3}}, ", ".join(get_args(PlacementPolicy))),
        (
            {"placement": {"nodes": {"policy": "spread", "by": ["gpu"]}}},
            "gpu-memory, cpu, memory",
        ),
        ({"placement": {"nodes": {}}}, "none, binpack, spread"),
    ],
)
def test_a_word_that_is_not_allowed_is_answered_with_those_that_are(
    parameters: dict[str, Any], allowed: str
) -> None:
    with pytest.raises(InvalidObjectError) as caught:
        decode({**HEAD, **parameters})
    assert sorted(caught.value.problem.partition("allowed are: ")[2].split(", ")) == sorted(
        allowed.split(", ")
    )


@pytest.mark.parametrize("parameters", [{"shares": {}}, {"placement": []}])
def test_where_no_word_is_asked_for_none_is_listed(parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidObjectError) as caught:
        decode({**HEAD, **parameters})
    assert "allowed" not in caught.value.problem


def test_nodes_are_preferred_by_all_three_resources_unless_some_are_named() -> None:
    nodes = decode({**HEAD, "placement": {"nodes": {"policy": "binpack"}}}).placement.nodes
    assert (nodes.policy, nodes.by) == ("binpack", ("gpu-memory", "cpu", "memory"))
    chosen = {"policy": "spread", "by": ["memory", "cpu"]}
    nodes = decode({**HEAD, "placement": {"nodes": chosen}}).placement.nodes
    assert (nodes.policy, nodes.by) == ("spread", ("memory", "cpu"))


def named(parameters: Any) -> dict[str, Any]:
    return decode_named(parameters, of_class=False).placement


def test_only_the_fields_that_a_configuration_names_are_told_of_it() -> None:
    packed = {"policy": "spread", "nodes": {"policy": "binpack", "by": ["cpu"]}}
    said = named({**HEAD, "placement": packed})
    assert said == {"policy": "spread", "nodes": NodesConfig("binpack", ("cpu",))}
    assert named(HEAD) == named({**HEAD, "placement": {}}) == {}
    spread = named({**HEAD, "placement": {"nodes": {"policy": "spread"}}})
    assert spread == {"nodes": NodesConfig("spread", ("gpu-memory", "cpu", "memory"))}
    assert named({**HEAD, "placement": {"policy": "sws"}}) == {"policy": "sws"}


@pytest.mark.parametrize(
    ("parameters", "path", "problem"),
    [
        ({**HEAD, "placement": {"strategy": "sws"}}, "placement.strategy", "unknown field"),
        ({**HEAD, "shares": {}}, "shares", "unknown field"),
        ({**HEAD, "placement": {"policy": "random"}}, "placement.policy", "random"),
        ({**HEAD, "placement": {"policy": 3}}, "placement.policy", "int"),
        ({**HEAD, "placement": []}, "placement", "array"),
        (with_nodes({}), "placement.nodes.policy", "missing"),
        (with_nodes({"policy": "pack"}), "placement.nodes.policy", "pack"),
        (with_nodes({"policy": "spread", "by": []}), "placement.nodes.by", "length"),
        (with_nodes({"policy": "spread", "by": ["gpu"]}), "placement.nodes.by[0]", "gpu"),
        (with_nodes({"policy": "spread", "by": ["cpu", "cpu"]}), "placement.nodes.by", "twice"),
        (with_nodes({"policy": "none", "weight": 1}), "placement.nodes.weight", "unknown field"),
        (with_nodes("spread"), "placement.nodes", "str"),
        ({"apiVersion": "mig.dra.dev/v2", "kind": KIND}, "", "mig.dra.dev/v2"),
        ({"kind": KIND}, "", "None"),
        ([], "", "must be an object"),
        (None, "", "must be an object"),
    ],
)
def test_bad_configuration_is_refused_with_the_path_of_the_field(
    parameters: Any, path: str, problem: str
) -> None:
    with pytest.raises(InvalidObjectError) as error:
        decode(parameters)
    assert error.value.path == path
    assert problem in error.value.problem
    assert KIND in str(error.value)


@pytest.mark.parametrize(
    "parameters",
    [
        {"x" * 9000: 1},
        {"apiVersion": "x" * 9000},
        {"apiVersion": ["x" * 9000]},
        {"kind": "x" * 9000},
        {"placement": {"policy": "x" * 9000}},
        {"placement": {"x" * 9000: "sws"}},
        {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "x" * 9000},
        {"share": {"tenants": "x" * 9000}},
    ],
    ids=lambda parameters: str(parameters)[:30],
)
def test_an_error_does_not_repeat_all_that_a_user_wrote(parameters: dict[str, Any]) -> None:
    """It stands in events, conditions and logs."""
    with pytest.raises(InvalidObjectError) as caught:
        decode({**HEAD, **parameters})
    assert len(str(caught.value)) < 700
