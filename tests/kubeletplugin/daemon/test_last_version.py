"""The plugin on a node where the last version has run."""

from __future__ import annotations

from tests.failures.versions import reader_0_1_0 as old
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.rig import Rig


def test_a_slice_that_the_last_version_made_is_kept_and_removed(rig: Rig) -> None:
    ref = rig.claim("gpu-0-mig-1g5gb-19-4")
    rig.prepared(ref)
    rig.stop()
    path = rig.roots.state / "journal.json"
    fields = old.REQUIRED | old.OPTIONAL
    records = [
        {name: value for name, value in record.items() if name in fields}
        for record in old.read(path.read_bytes())
    ]
    journal = {"version": 2, "generation": 1, "entries": records, "rebuild": False}
    path.write_bytes(old.sealed(journal))
    before = rig.mutations()
    rig.start()
    rig.prepared(ref)
    assert rig.mutations() == before, "it is the same slice"
    assert rig.unprepare(ref) == ""
    wait_for("its end", rig.clean)
