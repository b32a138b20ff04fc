import pytest

from dra.common.resources import at


@pytest.mark.parametrize(
    ("obj", "found"),
    [
        ({}, ()),
        ({"status": None}, ()),
        ({"status": {}}, ()),
        ({"status": {"conditions": None}}, ()),
        ({"status": {"conditions": []}}, []),
        ({"status": {"conditions": ["one"]}}, ["one"]),
    ],
)
def test_what_is_missing_or_null_on_the_way_is_the_default(obj: object, found: object) -> None:
    assert at(obj, "status", "conditions") == found  # type: ignore[arg-type]


def test_only_what_is_missing_is_replaced() -> None:
    spec = {"spec": {"replicas": 0, "paused": False, "name": ""}}
    assert at(spec, "spec", "replicas", default=1) == 0
    assert at(spec, "spec", "paused", default=True) is False
    assert at(spec, "spec", "name", default="x") == ""
    assert at(spec, "spec", "nodeName", default="x") == "x"
