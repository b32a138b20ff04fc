from __future__ import annotations

from typing import Any

import pytest

from api.config import API_VERSION, DEFAULT, KIND, decode, encode
from api.errors import InvalidObjectError

HEAD = {"apiVersion": API_VERSION, "kind": KIND}


def test_a_configuration_says_only_what_differs_from_the_default() -> None:
    assert decode(HEAD) == DEFAULT
    assert decode({**HEAD, "placement": {"policy": "spread"}}).placement.policy == "spread"
    assert decode(encode(DEFAULT)) == DEFAULT


@pytest.mark.parametrize(
    ("parameters", "path", "problem"),
    [
        ({**HEAD, "placement": {"strategy": "sws"}}, "placement.strategy", "unknown field"),
        ({**HEAD, "sharing": {}}, "sharing", "unknown field"),
        ({**HEAD, "placement": {"policy": "random"}}, "placement.policy", "random"),
        ({**HEAD, "placement": {"policy": 3}}, "placement.policy", "int"),
        ({**HEAD, "placement": []}, "placement", "array"),
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
