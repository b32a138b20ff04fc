"""Wishes that the configuration of a claim and of its classes holds."""

from __future__ import annotations

from typing import Any

import pytest

from api.config import decode_bind_when, decode_on_failure
from controller.lifecycle.failures.wishes import last_wish
from dra.common.resources import Obj
from tests.controller.helpers.objects import DRIVER


def entry(driver: str = DRIVER, **preparation: Any) -> Obj:
    parameters = {
        "apiVersion": "mig.dra.dev/v1alpha1",
        "kind": "MigDeviceConfig",
        "preparation": preparation,
    }
    return {"opaque": {"driver": driver, "parameters": parameters}}


EVICT, WAIT = entry(onFailure="evict"), entry(onFailure="wait")


@pytest.mark.parametrize(
    ("config", "wish"),
    [
        ([], None),
        ([EVICT], "evict"),
        ([EVICT, WAIT], "wait"),
        ([WAIT, EVICT], "evict"),
        ([EVICT, entry()], "evict"),
        ([EVICT, entry(bindWhen="made")], "evict"),
        ([EVICT, entry(onFailure="never")], "evict"),
        ([EVICT, {"opaque": {"driver": DRIVER}}], "evict"),
        ([EVICT, entry("nic.example", onFailure="wait")], "evict"),
        ([{}, {"opaque": None}], None),
    ],
    ids=str,
)
def test_the_last_entry_that_names_the_field_counts(config: list[Obj], wish: str | None) -> None:
    assert last_wish(config, decode_on_failure, driver=DRIVER) == wish


def test_each_field_has_its_own_wish() -> None:
    config = [entry(onFailure="evict", bindWhen="made"), WAIT]
    assert last_wish(config, decode_bind_when, driver=DRIVER) == "made"
