"""``kubectl mig doctor`` looks at each field of the definition of MigNodes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from api.crds import mignode_definition
from cli.doctoring.examination import Check, Status
from cli.doctoring.installation import definition
from dra.common.resources import Obj


def checked(changed: Obj) -> Check:
    evidence: Any = SimpleNamespace(facts=SimpleNamespace(installed=True), definition=changed)
    (check,) = definition(evidence)
    return check


def test_the_definition_of_this_version_has_every_field() -> None:
    assert checked(mignode_definition()).status is Status.OK


@pytest.mark.parametrize(
    "path",
    [
        "spec.drain",
        "spec.reservations",
        "status.mode",
        "status.gpus.sliceSharing",
        "status.cdiHook",
    ],
)
def test_one_that_lacks_a_field_is_too_old_and_the_field_is_named(path: str) -> None:
    changed = mignode_definition()
    schema = changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    *steps, last = path.split(".")
    for step in steps:
        schema = schema["properties"][step]
        schema = schema.get("items", schema)
    del schema["properties"][last]
    check = checked(changed)
    assert check.status is Status.FAIL
    assert path in check.message
