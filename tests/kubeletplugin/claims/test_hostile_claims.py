"""Claims with names as long as may be, and texts that mean something elsewhere."""

from __future__ import annotations

from pathlib import Path

from dra.common.resources import NAMESPACES, Obj
from tests.kubeletplugin.helpers.rig import DRIVER, Rig

SLICE = "gpu-0-mig-1g5gb-19-4"
NAMESPACE = "n" * 63
NAME = f"{'hostile' * 36}x"
TEXT = "/etc/shadow:/mnt LD_PRELOAD=/tmp/evil.so\n- path: /dev/sda"


def config(driver: str, parameters: Obj) -> Obj:
    opaque = {"driver": driver, "parameters": parameters}
    return {"source": "FromClaim", "requests": ["r0"], "opaque": opaque}


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def test_names_and_parameters_of_a_claim_are_in_no_spec_and_no_path(rig: Rig) -> None:
    others = {"mounts": [TEXT], "env": TEXT, "containerEdits": {"hooks": [TEXT]}}
    ours = {"apiVersion": "mig.dra.dev/v1alpha1", "kind": "MigDeviceConfig"}
    assert (len(NAMESPACE), len(NAME)) == (63, 253)
    rig.api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    ref = rig.claim(
        SLICE,
        name=NAME,
        namespace=NAMESPACE,
        config=(config("gpu.example.com", others), config(DRIVER, ours)),
    )
    names = rig.prepared(ref)
    assert all(len(name) < 150 for name in names)
    specs = files(rig.roots.cdi)
    assert any(ref.uid in path.name for path in specs)
    for word in (NAME, NAMESPACE, "etc/shadow", "evil", "sda"):
        assert not any(word in path.read_text() for path in specs)
        assert not any(word in str(path) for path in [*specs, *files(rig.roots.state)])
    assert rig.claim_status(ref)
    assert rig.unprepare(ref) == ""
    assert rig.clean()


def test_each_of_two_tenants_gets_the_nodes_of_its_own_instances_alone(rig: Rig) -> None:
    """Whoever has another's node in nvidia-caps and the GPU's can use that slice."""
    for number in range(2):
        rig.api.create(NAMESPACES, {"metadata": {"name": f"tenant-{number}"}})
    refs = [rig.claim(f"gpu-0-mig-1g5gb-19-{n}", namespace=f"tenant-{n}") for n in range(2)]
    found: list[set[str]] = []
    for ref in refs:
        rig.prepared(ref)
        spec = rig.spec(ref)
        edits = [spec.get("containerEdits", {}), *(d["containerEdits"] for d in spec["devices"])]
        nodes = {node["path"] for each in edits for node in each.get("deviceNodes", ())}
        found.append({path for path in nodes if "nvidia-cap" in path})
    common = rig.common()
    shared = str(common)
    assert [len(each) for each in found] == [2, 2]
    assert found[0].isdisjoint(found[1])
    assert not any(path in shared for each in found for path in each)
