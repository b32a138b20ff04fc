"""Configuration of claims and classes: what is read of it, and what others make of it."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import yaml

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
from cli.program import main
from dra.cel.kinds import Kinds
from dra.cel.selectors import Selectors
from dra.claims.claims import read_claim
from dra.claims.classes import generated_classes, read_class
from dra.claims.reader import Reader
from dra.claims.reasons import Obstacle
from dra.common.resources import Obj
from tests.api.configurations import BAD, GOOD
from tests.controller.helpers.objects import DRIVER, claim, request, versioned

HEAD = {"apiVersion": API_VERSION, "kind": KIND}


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
        ({"placement": {"nodes": {"policy": "spread", "by": ["gpu"]}}}, "gpu-memory, cpu, memory"),
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


@cache
def reader() -> Reader:
    classes = [read_class(each, DRIVER) for each in generated_classes(DRIVER, ["1g.5gb"])]
    return Reader(DRIVER, Kinds(Selectors()), {each.name: each for each in classes})


def with_parameters(name: str, parameters: Any) -> Obj:
    entry = {"opaque": {"driver": DRIVER, "parameters": parameters}}
    return claim(name, request(), config=[entry])


@pytest.fixture(scope="module")
def linted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, str]]]:
    """Field and message of each remark on a claim with a bad configuration, by the claim's name."""
    claims = [with_parameters(f"c{n}", bad.parameters) for n, bad in enumerate(BAD.values())]
    manifests = tmp_path_factory.mktemp("lint") / "claims.yaml"
    manifests.write_text(
        yaml.safe_dump_all({**each, "apiVersion": "resource.k8s.io/v1"} for each in claims)
    )
    with redirect_stdout(io.StringIO()) as printed:
        assert main(["lint", str(manifests), "-o", "json"]) == 1
    found: dict[str, list[tuple[str, str]]] = {}
    for remark in json.loads(printed.getvalue())["remarks"]:
        name = remark["object"].removeprefix("ResourceClaim ")
        found.setdefault(name, []).append((remark["field"], remark["message"]))
    return found


@pytest.mark.parametrize("name", BAD)
def test_bad_configuration_is_told_by_the_condition_and_by_lint_with_its_field(
    name: str, linted: dict[str, list[tuple[str, str]]]
) -> None:
    """Those that the API server refuses too: ``tests/cluster/apiserver``."""
    bad = BAD[name]
    with pytest.raises(InvalidObjectError) as error:
        decode_named(bad.parameters, of_class=False)
    assert error.value.path == bad.path
    assert bad.told in error.value.problem
    told = reader().read(read_claim(versioned(with_parameters("c", bad.parameters))))
    assert isinstance(told, Obstacle)
    assert (told.reason, told.message) == (
        "InvalidConfig",
        f"spec.devices.config[0].opaque.parameters: {error.value}",
    )
    field = ".".join(filter(None, ("spec.devices.config[0].opaque.parameters", bad.path)))
    assert linted[f"c{[*BAD].index(name)}"] == [(field, str(error.value))]


@pytest.mark.parametrize("name", GOOD)
def test_good_configuration_is_read(name: str) -> None:
    decode_named(GOOD[name], of_class=False)


@pytest.mark.parametrize("parameters", [[], None, "text"])
def test_what_is_no_object_is_refused(parameters: Any) -> None:
    """By the API server itself, too."""
    with pytest.raises(InvalidObjectError, match="must be an object"):
        decode(parameters)


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


# -- sharing as users write it, and every way to write it wrong


SLICE = {"apiVersion": API_VERSION, "kind": KIND}


@pytest.mark.parametrize(("text", "mebibytes"), [("512Mi", 512), ("8Gi", 8192), ("1Mi", 1)])
def test_a_limit_of_memory_is_told_in_mebibytes(text: str, mebibytes: int) -> None:
    limits = {"activeThreadPercentage": 50, "pinnedDeviceMemoryLimit": text}
    mps = decode({**SLICE, "sharing": {"strategy": "MPS", "mps": limits}}).sharing.mps
    assert (mps.memory_mebibytes, mps.limits_threads) == (mebibytes, True)


# -- configuration as NVIDIA's DRA driver reads it: what it is here, and what is refused


THEIR_GPU = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}


THEIR_SLICE = {**THEIR_GPU, "kind": "MigDeviceConfig"}


def by_mps(**config: Any) -> dict[str, Any]:
    return {"sharing": {"strategy": "MPS", "mpsConfig": config}}


@pytest.mark.parametrize(
    ("given", "strategy", "interval"),
    [
        (THEIR_GPU, "None", "Default"),
        ({**THEIR_GPU, "sharing": {"strategy": "TimeSlicing"}}, "TimeSlicing", "Default"),
        (
            {**THEIR_GPU, "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {}}},
            *("TimeSlicing", "Default"),
        ),
        (
            {
                **THEIR_GPU,
                "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
            },
            *("TimeSlicing", "Long"),
        ),
        ({**THEIR_SLICE, "sharing": {"strategy": "TimeSlicing"}}, "None", "Default"),
        ({**THEIR_SLICE, "sharing": {"strategy": "MPS"}}, "MPS", "Default"),
    ],
)
def test_what_nvidias_strategies_are_here(
    given: dict[str, Any], strategy: str, interval: str
) -> None:
    config = decode(given)
    assert (config.kind, config.sharing.strategy) == (given["kind"], strategy)
    assert config.sharing.time_slicing.interval == interval
    said = decode_named(given, of_class=False)
    assert (said.sharing is not None) == ("sharing" in given)
    assert said.placement == {}


@pytest.mark.parametrize(
    ("limit", "mebibytes"),
    [("10Gi", 10240), ("512Mi", 512), ("10G", 9536), ("1.5Gi", 1536), (2**31, 2048), ("4096Ki", 4)],
)
def test_limits_of_memory_are_any_quantity_rounded_down_to_mebibytes(
    limit: object, mebibytes: int
) -> None:
    given = by_mps(defaultActiveThreadPercentage=50, defaultPinnedDeviceMemoryLimit=limit)
    mps = decode({**THEIR_GPU, **given}).sharing.mps
    assert (mps.active_thread_percentage, mps.memory_mebibytes) == (50, mebibytes)
