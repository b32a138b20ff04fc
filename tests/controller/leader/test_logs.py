"""Log lines carry their fields, for people and for machines; the inbox keeps the order."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from dra.common.program import Format, configure


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def logged(capsys: pytest.CaptureFixture[str], style: Format) -> list[str]:
    configure("info", style)
    log = logging.getLogger("controller.test")
    log.info("allocated", extra={"claim": "default/c", "detail": 'no "room" here', "empty": ""})
    log.debug("not shown")
    try:
        int("boom")
    except ValueError:
        log.exception("failed %s", "twice")
    return capsys.readouterr().err.splitlines()


def test_a_line_for_machines_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (json.loads(line) for line in logged(capsys, "json"))
    assert first | {"time": ""} == {
        "time": "",
        "level": "info",
        "logger": "controller.test",
        "message": "allocated",
        "claim": "default/c",
        "detail": 'no "room" here',
        "empty": "",
    }
    assert "ValueError: invalid literal" in second["exception"]
