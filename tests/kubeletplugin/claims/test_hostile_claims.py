"""Claims with names as long as may be, and texts that mean something elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dra.common.resources import NAMESPACES, Obj
from dra.gpu.inventory import ClaimRef
from sim.nvml.faults import Fault
from sim.nvml.machine import GpuSpec
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.rig import A100, DRIVER, Rig

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


# -- claims and nodes that cannot be served: a clear error, and no change to hardware


def refuse(rig: Rig, ref: ClaimRef, *parts: str) -> None:
    """Prepare has to fail with all these words, and to leave no trace."""
    hardware, mutations = rig.machine.snapshot(), rig.mutations()
    error = rig.refused(ref)
    for part in (f"default/{ref.name}", ref.uid, *parts):
        assert part in error
    assert rig.machine.snapshot() == hardware
    assert rig.mutations() == mutations
    assert rig.journal() == ()
    assert rig.specs() == []


def ready(rig: Rig) -> Obj:
    [condition] = rig.mignode()["status"]["conditions"]
    assert condition["type"] == "Ready"
    found: Obj = condition
    return found


def test_without_nvml_the_plugin_stays_up_says_why_and_serves_once_it_is_there(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig()
    rig.machine.inject(Fault(id="init", function="nvmlInit*", action="return", code=9, times=0))
    rig.start(ready=False)
    wait_for("MigNode", rig.published)
    wait_for("the reason", lambda: "DRIVER_NOT_LOADED (9)" in ready(rig)["message"])
    assert ready(rig)["status"] == "False"
    refuse(rig, rig.claim(SLICE), "DRIVER_NOT_LOADED (9)", "modprobe nvidia")
    assert rig.unprepare(rig.claim(SLICE)) == "", "an unknown claim needs no NVML"
    rig.machine.clear_faults()
    wait_for("NVML", lambda: ready(rig)["status"] == "True")
    assert rig.prepared(rig.claim(SLICE))


def test_a_node_without_gpus_says_so(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(GpuSpec(A100))
    with rig.machine.store.change() as state:
        state.gpus = []
    rig.start()
    wait_for("MigNode", lambda: "no NVIDIA GPU" in ready(rig)["message"])
    assert ready(rig)["status"] == "False"
    refuse(rig, rig.claim(SLICE), "no GPU called gpu-0", "it has: none")


def test_a_gpu_that_is_lost_is_shown_with_its_claims_and_the_other_goes_on(rig: Rig) -> None:
    ref = rig.claim(SLICE)
    rig.prepared(ref)
    rig.machine.lose(0)
    assert rig.daemon is not None
    rig.poll()

    def lost() -> Obj:
        found: Obj = rig.mignode()["status"]["gpus"][0]
        return found

    wait_for("MigNode", lambda: lost().get("reason") == "GpuLost")
    assert "GPU_IS_LOST (15)" in lost()["message"]
    assert [i["claim"]["uid"] for i in lost()["instances"]] == [ref.uid]
    assert "GPU_IS_LOST (15)" in rig.refused(rig.claim("gpu-0-mig-1g5gb-19-0"))
    assert rig.prepared(rig.claim("gpu-1-mig-1g5gb-19-4"))
