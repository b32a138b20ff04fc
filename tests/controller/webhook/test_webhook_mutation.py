"""The webhook's answer about pods that ask by limits."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from controller.webhook.review import rewrite_limits
from tests.dra.limits.limitcases import CASES, Case, expected, patched, pod_of, seen


def review(pod: object) -> dict[str, Any]:
    return {"request": {"uid": "u1", "kind": {"kind": "Pod"}, "object": pod}}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_lets_every_pod_through_and_patches_those_that_ask(case: Case) -> None:
    response = rewrite_limits(review(pod_of(case)))["response"]
    assert (response["uid"], response["allowed"]) == ("u1", True)
    steps = json.loads(base64.b64decode(response.get("patch", "W10=")))
    assert ("patchType" in response) is bool(case.claims)
    assert seen(patched(pod_of(case), steps)) == expected(case)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"request": {"uid": "u1"}},
        {"request": {"object": {}}},
        review([]),
        review({"spec": {"containers": "none"}}),
        review({"spec": {"containers": [None]}}),
    ],
)
def test_what_is_no_review_of_a_pod_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no "):
        rewrite_limits(given)
