"""Whether claims, hardware, journal, CDI specs, MigNode and pods of a node say the same."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from cdi.spec import device_id
from dra.gpu.names import MigDevice, parse_device
from kubeletplugin.journal.journal import decode
from sim.nvml.machine import Machine
from sim.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hack.cluster.api import Api
    from sim.nvml.state import GpuInstance
    from tests.cluster.harness.daemons import Driver

Key = tuple[str, str]
"""Claim UID and device name."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A GPU instance and the compute instance in it; `key` is the hardware's, never used again."""

    key: int
    profile: int
    start: int
    gi: int
    ci: int | None
    uuid: str


class Agreement:
    """Reads everything from where it is kept, past the driver.

    Args:
        api: as the administrator.
        driver: knows the node, which has a single GPU.
        node: its name.
        cdi_root: where the node's CDI specs are.
    """

    def __init__(self, api: Api, driver: Driver, *, node: str, cdi_root: Path) -> None:
        self._api = api
        self._node = node
        self._cdi_root = cdi_root
        self._journal = driver.state(node) / "journal.json"
        self._caps_minor = driver.hardware[node].caps_minor
        self.machine = Machine(driver.hardware[node].state)
        self.foreign: Slice | None = None

    @contextlib.contextmanager
    def foreign_slice(self, profile: str, *, start: int) -> Iterator[None]:
        """Somebody else has a slice, of which the driver knows before the block begins."""
        made = self.machine.create_slice(0, profile, start=start)
        (self.foreign,) = (each for each in self._instances() if each.uuid == made.uuid)
        try:
            wait_for("foreign slice in the MigNode", lambda: "foreign" in self._states())
            yield
        finally:
            if self.foreign in self._instances():
                self.machine.destroy_slice(0, self.foreign.gi)
            self.foreign = None

    def slices(self) -> dict[Key, Slice | None]:
        """What is on the hardware in the place of each device that a claim was given here."""
        places = {(each.profile, each.start): each for each in self._instances()}
        return {
            (uid, name): places.get((device.profile_id, device.start))
            for uid, name in self._allocated()
            if isinstance(device := parse_device(name), MigDevice)
        }

    def settle(self, *, timeout: float = 30.0, context: Callable[[], str]) -> dict[Key, Slice]:
        """Waits until all agree; returns the slices of all claims."""

        def agreed() -> bool:
            return not self.problems()

        def why() -> str:
            return "\n".join([*self.problems(), context()])

        wait_for("agreement", agreed, timeout=timeout, context=why)
        return {key: each for key, each in self.slices().items() if each is not None}

    def problems(self) -> list[str]:
        """What contradicts the claims, in words."""
        wanted = self.slices()
        present = {key: each for key, each in wanted.items() if each is not None}
        own = {each.key for each in self._instances()} - self._foreign_keys()
        whole = {key: ("prepared", each.gi, each.ci, each.uuid) for key, each in present.items()}
        expected: dict[str, tuple[Any, Any]] = {
            "claims on the hardware": (sorted(wanted), sorted(present)),
            "GPU instances": ({each.key for each in present.values()}, own),
            "foreign slice": ([self.foreign] if self.foreign else [], list(self._found_foreign())),
            "journal": (whole, self._journalled()),
            "MigNode": (
                {(uid, each.uuid, "prepared") for (uid, _), each in present.items()},
                self._claimed(),
            ),
            "CDI": (
                {device_id(*key): self._nodes(each) for key, each in present.items()},
                self._specs(),
            ),
            "pods that do not run": ([], self._idle_pods()),
        }
        return [
            f"{what}: expected {right}, found {found}"
            for what, (right, found) in expected.items()
            if right != found
        ]

    def _allocated(self) -> Iterator[Key]:
        for claim in self._api.list("ResourceClaim"):
            allocation = claim.get("status", {}).get("allocation") or {"devices": {}}
            for result in allocation["devices"].get("results", []):
                if result["pool"] == self._node:
                    yield claim["metadata"]["uid"], result["device"]

    def _instances(self) -> list[Slice]:
        return [_slice(each) for each in self.machine.gpu().gpu_instances]

    def _found_foreign(self) -> Iterator[Slice]:
        yield from (each for each in self._instances() if each.key in self._foreign_keys())

    def _foreign_keys(self) -> set[int]:
        return {self.foreign.key} if self.foreign else set()

    def _journalled(self) -> dict[Key, tuple[Any, ...]]:
        try:
            entries = decode(self._journal.read_bytes()).entries
        except FileNotFoundError:  # there has never been anything
            entries = ()
        return {e.key: (e.state.value, e.gi_id, e.ci_id, e.mig_uuid) for e in entries}

    def _published(self) -> list[dict[str, Any]]:
        (gpu,) = self._api.get("MigNode", self._node)["status"]["gpus"]
        instances: list[dict[str, Any]] = gpu.get("instances", [])
        return instances

    def _states(self) -> list[str]:
        return [each["state"] for each in self._published()]

    def _claimed(self) -> set[tuple[str, str, str]]:
        return {
            (each["claim"]["uid"], each.get("uuid", ""), each["state"])
            for each in self._published()
            if "claim" in each
        }

    def _specs(self) -> dict[str, set[str]]:
        specs: dict[str, set[str]] = {}
        for path in sorted(self._cdi_root.iterdir()) if self._cdi_root.exists() else ():
            try:
                text = path.read_text()
            except FileNotFoundError:  # removed since it was listed
                return {path.name: set()}
            for device in (yaml.safe_load(text) or {}).get("devices", []):
                found = device["containerEdits"].get("deviceNodes", ())
                nodes = {each["path"] for each in found if "nvidia-caps" in each["path"]}
                if "-driver." in path.name:
                    assert not nodes, f"{path.name} opens slices: {nodes}"
                else:
                    specs[device["name"]] = nodes
        return specs

    def _nodes(self, each: Slice) -> set[str]:
        try:
            minors = [
                self._caps_minor(gpu=0, instance=path)
                for path in (f"gi{each.gi}", f"gi{each.gi}/ci{each.ci}")
            ]
        except FileNotFoundError:  # removed since it was listed
            return set()
        return {f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in minors}

    def _idle_pods(self) -> list[str]:
        pods = self._api.list("Pod", fieldSelector=f"spec.nodeName={self._node}")
        return [pod["metadata"]["name"] for pod in pods if not _runs(pod)]


def _runs(pod: dict[str, Any]) -> bool:
    status = pod["status"]
    return status.get("phase") == "Running" and all(
        "running" in each["state"] for each in status.get("containerStatuses", [])
    )


def _slice(instance: GpuInstance) -> Slice:
    compute = next(iter(instance.compute_instances), None)
    return Slice(
        key=instance.key,
        profile=instance.profile,
        start=instance.start,
        gi=instance.id,
        ci=compute.id if compute else None,
        uuid=compute.uuid if compute else "",
    )
