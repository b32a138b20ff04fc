"""The MigNode that version 0.1.0 writes, read by today's programs, and the other way round.

``frozen/<version>`` is never changed. A new version gets a folder of its own, and the one before
the last is dropped: N reads what N-1 writes, and N-1 what N writes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.crds import mignode_definition
from dra.gpu.inventory import AllocatorKind, InstanceState
from dra.gpu.mignode import from_mignode, to_mignode
from tests.failures.versions.differences import absent, lost, narrowed, pruned, refused
from tests.failures.versions.samples import mignode

FROZEN = Path(__file__).parent / "frozen/0.1.0"
WORDS = {
    InstanceState: {"preparing", "prepared", "reclaiming", "orphan", "foreign", "lost"},
    AllocatorKind: {"controller", "scheduler"},
}
"""Words of a MigNode that 0.1.0 knows; it refuses any other."""


NOT_THE_PLUGINS = {".conditions[].observedGeneration"}
"""Fields of the definition that the plugin does not write."""


def frozen_mignode() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FROZEN / "mignode.json").read_text())
    return found


def schema(definition: dict[str, Any]) -> dict[str, Any]:
    (version,) = definition["spec"]["versions"]
    assert (version["name"], version["served"], version["storage"]) == ("v1alpha1", True, True)
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return found


def frozen_schema() -> dict[str, Any]:
    return schema(yaml.safe_load((FROZEN / "mignodes.yaml").read_text()))


def test_the_last_mignode_is_read_and_written_without_loss() -> None:
    frozen = frozen_mignode()
    again = to_mignode(from_mignode(frozen))
    # The condition has the time of its writing.
    assert [p for p in lost(frozen, again) if "lastTransitionTime" not in p] == []


def test_todays_definition_takes_whatever_the_last_one_took() -> None:
    today = schema(mignode_definition())
    assert [*narrowed(frozen_schema(), today)] == []
    assert pruned(frozen_mignode(), today) == frozen_mignode()


def test_the_sample_of_todays_mignode_has_a_value_in_every_field() -> None:
    """Else a new field is compared with nothing."""
    known = schema(mignode_definition())["properties"]
    written = mignode()
    missing = {f for part in ("spec", "status") for f in absent([written[part]], known[part])}
    assert missing - NOT_THE_PLUGINS == set(), "give them a value in samples.py beside this"


def test_todays_mignode_is_kept_by_the_last_definition_and_read_from_it() -> None:
    """A program that is newer than the definition: what is dropped is new, and not needed."""
    written = mignode()
    assert [*refused(written, frozen_schema())] == []
    kept = pruned(written, frozen_schema())
    frozen = frozen_mignode()
    assert [field for field in lost(frozen, kept) if ": " not in field] == []
    assert from_mignode(kept).gpus


@pytest.mark.parametrize("words", WORDS, ids=lambda words: words.__name__)
def test_no_word_is_written_that_the_last_version_refuses(words: Any) -> None:
    """A new word is read by one version before the next one writes it."""
    assert {each.value for each in words} <= WORDS[words]
