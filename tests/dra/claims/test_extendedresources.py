"""Of DeviceClasses with one extended resource, kube-scheduler takes one; ours takes none away."""

from __future__ import annotations

import pytest

from dra.claims.classes import generated_label, may_carry, precedes
from dra.common.resources import Obj

DRIVER, NAME = "mig.dra.dev", "nvidia.com/mig-1g.5gb"
OLD, NEW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def made(name: str, at: str, resource: str = NAME, *, ours: bool = False) -> Obj:
    labels = {generated_label(DRIVER): "true"} if ours else {}
    metadata = {"name": name, "creationTimestamp": at, "labels": labels}
    return {"metadata": metadata, "spec": {"extendedResourceName": resource} if resource else {}}


def test_the_newer_class_is_taken_and_of_one_second_the_first_by_name() -> None:
    assert precedes(made("b", NEW), made("a", OLD))
    assert not precedes(made("a", OLD), made("b", NEW))
    assert precedes(made("a", OLD), made("b", OLD))
    assert not precedes(made("b", OLD), made("a", OLD))


@pytest.mark.parametrize(
    ("own", "holder", "served", "carries"),
    [
        (None, None, True, True),
        (None, None, False, False),
        (made("o", OLD, ""), None, True, True),
        (made("o", OLD), None, False, False),
        (None, made("h", OLD), True, False),
        (made("o", OLD, ""), made("h", NEW), True, False),
        (made("o", OLD), made("h", NEW), True, True),
        (made("o", OLD), made("h", NEW), False, True),
        (made("o", NEW), made("h", OLD), True, False),
    ],
)
def test_ours_takes_no_name_and_gives_none_up_that_would_be_lost_to_both(
    own: Obj | None, holder: Obj | None, *, served: bool, carries: bool
) -> None:
    assert may_carry(NAME, own, holder, served=served) is carries
