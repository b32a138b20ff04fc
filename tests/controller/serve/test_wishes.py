"""Wishes that the configuration of a claim and of its classes holds."""

from __future__ import annotations

from typing import Any

import pytest

from controller.serve.nudges import preparation
from dra.common.resources import Obj
from tests.controller.helpers.objects import DRIVER


def entry(driver: str = DRIVER, **fields: Any) -> Obj:
    parameters = {
        "apiVersion": "mig.dra.dev/v1alpha1",
        "kind": "MigDeviceConfig",
        "preparation": fields,
    }
    return {"opaque": {"driver": driver, "parameters": parameters}}


EVICT, WAIT = entry(onFailure="evict"), entry(onFailure="wait")


@pytest.mark.parametrize(
    ("config", "wish"),
    [
        ([], "wait"),
        ([EVICT], "evict"),
        ([EVICT, WAIT], "wait"),
        ([WAIT, EVICT], "evict"),
        ([EVICT, entry()], "evict"),
        ([EVICT, entry(bindWhen="made")], "evict"),
        ([EVICT, entry(onFailure="never")], "evict"),
        ([EVICT, {"opaque": {"driver": DRIVER}}], "evict"),
        ([EVICT, entry("nic.example", onFailure="wait")], "evict"),
        ([{}, {"opaque": None}], "wait"),
    ],
    ids=str,
)
def test_the_last_entry_that_names_the_field_counts(config: list[Obj], wish: str) -> None:
    assert preparation(config, driver=DRIVER).on_failure == wish


def test_each_field_has_its_own_wish() -> None:
    config = [entry(onFailure="evict", bindWhen="made"), WAIT]
    assert preparation(config, driver=DRIVER).bind_when == "made"
