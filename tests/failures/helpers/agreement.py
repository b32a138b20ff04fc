"""Whether journal, hardware, CDI specs and claims say the same."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

import yaml

from dra.claims.conditions import SLICE_MADE
from dra.common.resources import PODS, Obj
from dra.gpu.inventory import ClaimRef
from dra.gpu.names import GpuDevice, parse_device
from kubeletplugin.claims.sharing.mps_pod import pod_name
from kubeletplugin.journal.entries import Entry, State
from kubeletplugin.journal.journal import Journal
from sim.nvml import host
from sim.nvml.driverfiles import time_slice
from sim.nvml.state import Gpu, GpuInstance
from tests.failures.helpers.daemonpods import NAMESPACE
from tests.failures.helpers.site import DRIVER, Site

COMMON_SPEC = f"k8s.{DRIVER}-driver.yaml"
CONTROL_NODES = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
LIBCUDA = "/usr/lib64/libcuda.so.1"


def entries(site: Site) -> tuple[Entry, ...]:
    """The journal as a new process would find it."""
    return Journal(site.roots.state / "journal.json").entries()


def own_instances(site: Site, foreign: Collection[int]) -> list[tuple[Gpu, GpuInstance]]:
    """GPU instances that are not in ``foreign``, which are keys of the simulated hardware."""
    return [
        (gpu, gi)
        for gpu in site.machine.state().gpus
        for gi in gpu.gpu_instances
        if gi.key not in foreign
    ]


def instance_of(site: Site, device: str) -> tuple[Gpu, GpuInstance] | None:
    """What is on the hardware at exactly the place that a device's name means."""
    parsed = parse_device(device)
    if isinstance(parsed, GpuDevice):
        return None
    gpu = site.machine.state().gpus[parsed.minor]
    for gi in gpu.gpu_instances:
        if (gi.profile, gi.start) == (parsed.profile_id, parsed.start):
            return gpu, gi
    return None


def uuid_of(site: Site, device: GpuDevice) -> str:
    """The UUID of a whole GPU."""
    return site.machine.state().gpus[device.minor].uuid


def nodes_of(gpu: Gpu, gi: GpuInstance) -> set[str]:
    """The device nodes that a container needs for this slice and no other."""
    [ci] = gi.compute_instances
    minors = (
        host.gpu_instance_minor(gpu.minor, gi.id),
        host.compute_instance_minor(gpu.minor, gi.id, ci.id),
    )
    return {f"/dev/nvidia{gpu.minor}", *(f"/dev/nvidia-caps/nvidia-cap{m}" for m in minors)}


@lru_cache
def _spec(content: bytes) -> dict[str, tuple[Obj, Obj]]:
    """For each device of a spec, by its CDI name, the edits of the whole spec and its own."""
    spec = yaml.load(content, Loader=yaml.CSafeLoader)
    common = spec.get("containerEdits", {})
    return {f"{spec['kind']}={d['name']}": (common, d["containerEdits"]) for d in spec["devices"]}


def _nodes(*all_edits: Obj) -> set[str]:
    return {node["path"] for edits in all_edits for node in edits.get("deviceNodes", ())}


def _mounts(*all_edits: Obj) -> set[str]:
    return {mount["containerPath"] for edits in all_edits for mount in edits.get("mounts", ())}


def check_common(site: Site) -> None:
    """The spec that claims have in common has libraries, and no node of any GPU or slice."""
    for edits in _spec((site.roots.cdi / COMMON_SPEC).read_bytes()).values():
        assert _nodes(*edits) == CONTROL_NODES
        assert LIBCUDA in _mounts(*edits)


def check_told(site: Site, ref: ClaimRef) -> None:
    """Each answer that kubelet got, by which it starts containers, gives them the driver's files.

    And what they need besides of nodes: those of the answer's own device, and of no other.
    """
    found: dict[str, tuple[Obj, Obj]] = {}
    for path in site.roots.cdi.glob("*.yaml"):
        found |= _spec(path.read_bytes())
    for names in site.told(ref):
        assert found.keys() >= set(names), f"{ref} was told of {names}, there is {sorted(found)}"
        edits = [each for name in names for each in found[name]]
        assert LIBCUDA in _mounts(*edits), f"{ref} was told of {names}, which have no libraries"
        assert _nodes(*edits) == CONTROL_NODES | _nodes(found[names[-1]][1])


def check_claim(site: Site, ref: ClaimRef, devices: Sequence[str]) -> None:
    """A claim that kubelet was told of: hardware, journal and CDI spec are exactly right."""
    known = {e.device: e for e in entries(site) if e.claim.uid == ref.uid}
    assert known.keys() == set(devices), f"journal of {ref}: {sorted(known)}"
    path = site.roots.cdi / f"k8s.{DRIVER}-claim_{ref.uid}.yaml"
    assert path.is_file(), f"no CDI spec of {ref}"
    check_common(site)
    check_told(site, ref)
    spec = _spec(path.read_bytes())
    nodes = {name.partition("=")[2]: _nodes(own) for name, (_, own) in spec.items()}
    assert nodes.keys() == {f"{ref.uid}-{d}" for d in devices}
    for device in devices:
        entry, found = known[device], instance_of(site, device)
        whole = parse_device(device)
        if isinstance(whole, GpuDevice):
            assert (entry.state, entry.gpu) == (State.PREPARED, uuid_of(site, whole)), entry
            own = {f"/dev/nvidia{whole.minor}", "/dev/nvidia-modeset"}
            assert nodes[f"{ref.uid}-{device}"] == own
            continue
        assert found is not None, f"{device} of {ref} is not on the hardware"
        gpu, gi = found
        assert len(gi.compute_instances) == 1, f"{device}: {gi}"
        [ci] = gi.compute_instances
        shown = (entry.state, entry.gpu, entry.gi_id, entry.ci_id, entry.mig_uuid)
        assert shown == (State.PREPARED, gpu.uuid, gi.id, ci.id, ci.uuid), f"{device}: {entry}"
        assert nodes[f"{ref.uid}-{device}"] == nodes_of(gpu, gi)


def slices_made(site: Site, ref: ClaimRef) -> set[str]:
    """The devices of which conditions of their claim say that they are made."""
    return {
        device["device"]
        for device in site.status(ref).get("devices", ())
        for condition in device["conditions"]
        if (condition["type"], condition["status"]) == (SLICE_MADE, "True")
    }


def check_settled(
    site: Site,
    claims: Mapping[ClaimRef, Sequence[str]],
    foreign: Collection[int] = (),
    *,
    ready: Collection[str] = (),
) -> None:
    """Exactly these claims are prepared, nothing else of ours is anywhere, others' is untouched.

    But for the slices ``ready`` for claims, which are there and have no compute instance.
    """
    check_foreign(site, foreign)
    for ref, devices in claims.items():
        check_claim(site, ref, devices)
    wanted = {(ref.uid, d) for ref, devices in claims.items() for d in devices}
    kept = {e.device: e for e in entries(site) if e.ready}
    assert kept.keys() == set(ready), f"ready slices: {sorted(kept)}"
    assert {e.key for e in entries(site) if not e.ready} == wanted, "journal"
    places = {(g.uuid, i.key) for g, i in own_instances(site, foreign)}
    right = set()
    for device in (*(device for _, device in wanted), *ready):
        if (found := instance_of(site, device)) is not None:
            right.add((found[0].uuid, found[1].key))
            if device in ready:
                assert found[1].id == kept[device].gi_id
                assert not found[1].compute_instances, f"{device} is in use"
    assert places == right, f"leaked on the hardware: {places - right}"
    specs = {f"k8s.{DRIVER}-claim_{ref.uid}.yaml" for ref in claims}
    cdi = site.roots.cdi
    present = {p.name for p in cdi.iterdir()} if cdi.is_dir() else set()
    present -= {COMMON_SPEC}  # no claim's: it may stay
    assert present == specs, f"CDI specs: {present ^ specs}"
    left = [p.name for p in site.roots.state.glob("*.tmp*")]
    assert not left, f"half-written files are left: {left}"


def check_sharing(site: Site, *, lengths: Sequence[int], daemons: Collection[str]) -> None:
    """GPUs have turns of these lengths, and there are MPS daemons of these claims (UIDs) alone.

    Neither a daemon nor a setting is left of a claim that is gone.
    """
    found = [time_slice(site.roots.host, gpu.uuid) for gpu in site.machine.state().gpus]
    assert found == [*lengths], f"lengths of turns: {found}"
    pods = {pod["metadata"]["name"] for pod in site.api().list(PODS, namespace=NAMESPACE).items}
    assert pods == {pod_name(uid) for uid in daemons}, f"pods of daemons: {sorted(pods)}"
    left = {folder.name for folder in site.daemons.glob("*")}
    assert left == set(daemons), f"directories of daemons: {sorted(left)}"
    mounts = sorted(f"{site.daemons.relative_to(site.root)}/{uid}" for uid in daemons)
    assert sorted(site.mounted()) == (mounts if os.geteuid() == 0 else [])  # only root can mount


def check_running_daemons(site: Site) -> None:
    """No daemon runs whose device is not its claim's any more."""
    known = {entry.claim.uid: entry for entry in entries(site)}
    for place in site.daemons.glob("*/alive"):
        uid = place.parent.name
        assert uid in known, f"the daemon of {uid} runs, and the device is anybody's"
        found = instance_of(site, known[uid].device)
        whole = known[uid].placement is None
        assert whole or (found is not None and found[1].compute_instances), "no device is there"


def check_foreign(site: Site, foreign: Collection[int]) -> None:
    """Every instance that somebody else made is there, as it was made."""
    present = {gi.key for gpu in site.machine.state().gpus for gi in gpu.gpu_instances}
    assert set(foreign) <= present, f"foreign instances destroyed: {set(foreign) - present}"
