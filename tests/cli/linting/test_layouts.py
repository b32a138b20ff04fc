"""``lint`` and ``convert`` read files of mig-parted's, and classes of nodes."""

from __future__ import annotations

import pytest
import yaml

from tests.cli.linting.conftest import Command

FILE = """\
version: v1
mig-configs:
  all-1g.5gb:
  - devices: all
    mig-enabled: true
    mig-devices:
      "1g.5gb": 7
"""
CLASS = """\
apiVersion: mig.dra.dev/v1alpha1
kind: MigNodeClass
mode: layout
layout: x
layouts:
  version: v1
  mig-configs:
    x:
    - devices: all
      mig-enabled: true
      mig-devices: {"3g.20gb": 2}
"""


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (
            FILE.replace('"1g.5gb": 7', '"1g.5gb": many'),
            7,
            ": it must be a whole number, 0 or more",
        ),
        (FILE.replace("all\n", "some\n"), 4, "'some' is not allowed; allowed are: all, or a list"),
        (
            FILE.replace("  all-1g", "- all-1g"),
            2,
            "it is a list, and the names of layouts are keys",
        ),
        (CLASS.replace("mode: layout", "mode: fast"), 3, "'fast' is not allowed; allowed are:"),
        (CLASS.replace("layout: x\n", ""), 1, "the field is missing, and mode is 'layout'"),
        (CLASS.replace("3g.20gb", "big"), 11, "'big' is no profile; one is written like 1g.5gb"),
    ],
)
def test_what_is_wrong_is_said_at_its_line(lint: Command, text: str, line: int, says: str) -> None:
    ran = lint(text)
    assert ran.code == 1
    assert f"f.yaml:{line}: error: " in ran.out
    assert says in ran.out
    body = {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a.yaml": text}}
    ran = lint(yaml.safe_dump(body))
    assert ran.code == 1
    assert "ConfigMap c: data.a.yaml: " in ran.out
    assert says in ran.out


def test_a_file_of_mig_parted_becomes_a_config_map_unchanged(convert: Command) -> None:
    ran = convert(FILE)
    assert ran.code == 0
    made = yaml.safe_load(ran.out)
    assert (made["kind"], made["metadata"]) == ("ConfigMap", {"name": "mig-parted"})
    assert yaml.safe_load(made["data"]["config.yaml"]) == yaml.safe_load(FILE)
    ran = convert(FILE.replace("v1", "v7"))
    assert ran.code == 1
    assert "'v7' is not known; allowed are: v1" in ran.out
