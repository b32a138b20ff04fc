"""One node in a folder: its hardware, its host's files, its state, and the API's objects."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from dra.claims.conditions import binding_fields
from dra.common.resources import NODES, RESOURCE_CLAIMS, Obj
from dra.gpu.inventory import ClaimRef
from dra.kube.client import KubeApi
from dra.kube.errors import KubeError, ObjectNotFoundError
from kubeletplugin.host.roots import Roots
from sim.nvml.machine import GpuSpec, Machine
from sim.nvml.products import Variants
from tests.failures.helpers.folderapi import FolderHttp
from tests.helpers.folders import mounts_below, unmount_below

DRIVER = "mig.dra.dev"
NODE = "node-1"
A100 = "A100-SXM4-40GB"


@dataclass(frozen=True, slots=True)
class Site:
    """The node's folder: hardware, host, state, CDI specs, and the API's objects.

    ``idle_seconds`` is the program's option. With ``layouts`` the node has the directory of
    classes of nodes, with ``mps`` the daemons of claims.
    """

    root: Path
    idle_seconds: float = 0.0
    layouts: bool = False
    mps: bool = False

    @classmethod
    def create(
        cls,
        root: Path,
        *,
        gpus: int = 2,
        variants: Variants | None = None,
        idle_seconds: float = 0.0,
        layouts: str = "",
        whole: int = 0,
        mps: bool = False,
    ) -> Site:
        """A node that has just been put up, with a driver that behaves in one way or another.

        The last ``whole`` of its GPUs are not in MIG mode.
        """
        specs = [GpuSpec(A100, mig=number < gpus - whole) for number in range(gpus)]
        Machine.create(root / "hw", specs, variants=variants)
        site = cls(root, idle_seconds, bool(layouts), mps)
        if layouts:
            (root / "classes").mkdir()
            (root / "classes/config.yaml").write_text(layouts)
        site.api().create(NODES, {"metadata": {"name": NODE}})
        return site

    @property
    def machine(self) -> Machine:
        """The hardware."""
        return Machine(self.root / "hw")

    @property
    def roots(self) -> Roots:
        """The folders in which the program finds everything."""
        return Roots(
            host=self.root / "hw/host",
            driver=Path("/"),
            cdi=self.root / "cdi",
            kubelet=self.root / "k",
            state=self.root / "state",
        )

    @property
    def daemons(self) -> Path:
        """The folder of the files that MPS daemons of claims have."""
        return self.roots.state / "mps"

    def tell(self, ref: ClaimRef, answer: Iterable[tuple[str, ...]]) -> None:
        """Kubelet is told the CDI names of each device; it adds them to what it knows."""
        known = set(self.told(ref))
        if new := [names for names in dict.fromkeys(answer) if names not in known]:
            with (self.root / f"told-{ref.uid}").open("a") as file:
                file.writelines(f"{' '.join(names)}\n" for names in new)

    def told(self, ref: ClaimRef) -> list[tuple[str, ...]]:
        """All that kubelet was told of a claim, by which it starts containers without asking."""
        try:
            lines = (self.root / f"told-{ref.uid}").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [tuple(line.split()) for line in lines]

    def forget(self, ref: ClaimRef) -> None:
        """Kubelet has taken a claim back, and forgets what it was told."""
        (self.root / f"told-{ref.uid}").unlink(missing_ok=True)

    def api(self, reach: Callable[[str, str], None] | None = None) -> KubeApi:
        """The API server's clients."""
        return KubeApi(FolderHttp(self.root / "api", reach=reach))

    def declare(self, layout: str) -> None:
        """The Node gets the label that chooses a layout."""
        labels = {"nvidia.com/mig.config": layout}
        self.api().patch(NODES, NODE, {"metadata": {"labels": labels}})

    def claim(
        self,
        name: str,
        devices: Sequence[str],
        *,
        awaited: bool = False,
        config: Sequence[Obj] = (),
    ) -> ClaimRef:
        """A claim that was given these devices, one request each, with ``config``.

        ``awaited``: kube-scheduler binds its pod only once they are made.
        """
        body = {"metadata": {"name": name, "namespace": "default"}}
        status = _given(name, devices)
        status["allocation"]["devices"] |= {"config": [*config]} if config else {}
        for result in status["allocation"]["devices"]["results"] if awaited else ():
            result.update(binding_fields())
        made = self.api().create(RESOURCE_CLAIMS, {**body, "status": status})
        return ClaimRef("default", name, made["metadata"]["uid"])

    def allocate(self, ref: ClaimRef, devices: Sequence[str]) -> None:
        """Give devices to a claim that has none."""
        api, body = self.api(), {"status": _given(ref.name, devices)}
        api.patch(RESOURCE_CLAIMS, ref.name, body, namespace=ref.namespace, subresource="status")

    def delete_claim(self, ref: ClaimRef) -> None:
        """The claim is gone; that it is gone already is fine."""
        try:
            self.api().delete(RESOURCE_CLAIMS, ref.name, namespace=ref.namespace, uid=ref.uid)
        except KubeError:
            return

    def unreserve(self, ref: ClaimRef) -> None:
        """No pod is to use it any more; its allocation stays."""
        api, body = self.api(), {"status": {"reservedFor": None}}
        api.patch(RESOURCE_CLAIMS, ref.name, body, namespace=ref.namespace, subresource="status")

    def use(self, ref: ClaimRef) -> None:
        """A pod is to use it."""
        api, body = self.api(), {"status": {"reservedFor": [_user(ref.name)]}}
        api.patch(RESOURCE_CLAIMS, ref.name, body, namespace=ref.namespace, subresource="status")

    def status(self, ref: ClaimRef) -> Obj:
        """Status of a claim as the API has it."""
        found = self.api().get(RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)
        status: Obj = found["status"]
        return status

    def deallocate(self, ref: ClaimRef) -> None:
        """The allocation is taken back, as no pod uses it."""
        status = {"allocation": None, "reservedFor": None}
        api, body = self.api(), {"status": status}
        api.patch(RESOURCE_CLAIMS, ref.name, body, namespace=ref.namespace, subresource="status")

    def has_claim(self, ref: ClaimRef) -> bool:
        """True if the claim itself is in the API."""
        try:
            found = self.api().get(RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)
        except ObjectNotFoundError:
            return False
        return bool(found["metadata"]["uid"] == ref.uid)

    def save(self, place: Path) -> None:
        """Keep a copy of everything, with the names of folders that something is mounted on."""
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.root, place, symlinks=True, copy_function=_copy)
        place.with_suffix(".mounts").write_text("\n".join(self.mounted()))

    def restore(self, place: Path) -> None:
        """Everything as it was when it was saved, mounts included: they outlive a process."""
        unmount_below(self.root)
        shutil.rmtree(self.root)
        for name in place.with_suffix(".mounts").read_text().split():
            (self.root / name).mkdir(parents=True)
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", self.root / name], check=True)
        shutil.copytree(place, self.root, symlinks=True, copy_function=_copy, dirs_exist_ok=True)

    def mounted(self) -> list[str]:
        """Folders of the node that something is mounted on, relative to its own."""
        return [os.path.relpath(path, self.root) for path in mounts_below(self.root)]


def _copy(source: str, target: str) -> None:
    """Copy a file, or make the same device node, as root has them made on the host."""
    found = Path(source).stat()
    if stat.S_ISCHR(found.st_mode):
        os.mknod(target, found.st_mode, found.st_rdev)
    else:
        shutil.copy2(source, target)


def _given(name: str, devices: Sequence[str]) -> Obj:
    results = [
        {"request": f"r{i}", "driver": DRIVER, "pool": NODE, "device": d}
        for i, d in enumerate(devices)
    ]
    return {"allocation": {"devices": {"results": results}}, "reservedFor": [_user(name)]}


def _user(name: str) -> Obj:
    return {"resource": "pods", "name": f"{name}-pod", "uid": str(uuid4())}
