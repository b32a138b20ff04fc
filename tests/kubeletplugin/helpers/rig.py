"""One node with simulated GPUs and the plugin in this process, over real sockets and HTTP."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import yaml

import sim.nvml
from api.crds import mignode_definition
from api.kubelet.dra.v1 import api_pb2 as v1
from api.kubelet.dra.v1 import api_pb2_grpc as v1_grpc
from dra.claims.allocation import label_of, node_label
from dra.claims.conditions import binding_fields
from dra.common.resources import MIG_NODES, NODES, RESOURCE_CLAIMS, Obj, Resource
from dra.gpu.inventory import AllocatorKind, ClaimRef
from dra.gpu.mignode import to_mignode
from dra.kube.client import KubeApi
from kubeletplugin.daemon.daemon import Daemon
from kubeletplugin.host.roots import Roots
from kubeletplugin.journal.entries import Entry
from kubeletplugin.journal.journal import Journal
from kubeletplugin.options import BindingConditions, Options
from kubeletplugin.telemetry.telemetry import Telemetry
from sim.kubelet.claims import ClaimInfo
from sim.kubelet.plugins import PreparedDevice
from sim.kubelet.podresources import PodResourcesServer
from sim.nvml.machine import Machine
from tests.failures.versions.differences import pruned
from tests.helpers.waiting import PATIENCE, wait_for
from tests.kubeletplugin.helpers.pluginhttp import PluginHttp

(_VERSION,) = mignode_definition()["spec"]["versions"]
_STATUS = _VERSION["schema"]["openAPIV3Schema"]["properties"]["status"]
A100 = "A100-SXM4-40GB"
DRIVER = "mig.dra.dev"


class Rig:
    """The node; ``start`` and ``stop`` are the plugin's. Device names are given to ``claim``."""

    def __init__(self, machine: Machine, folder: Path, kubeconfig: Path) -> None:
        self.machine = machine
        self.folder = folder
        self.kubeconfig = kubeconfig
        self.node = f"node-{uuid4().hex[:8]}"
        self.api = KubeApi.connect(str(kubeconfig), user_agent="tests/1", timeout_seconds=30.0)
        self.http = PluginHttp(kubeconfig)
        self.driver_root = Path("/")
        self.allocator = AllocatorKind.CONTROLLER
        self.eager_seconds = 600.0
        self.idle_seconds = 0.0
        self.mps_image = ""
        self.mps_pull_secrets: tuple[str, ...] = ()
        self.binding_conditions = BindingConditions.AFTER_FAILURE
        self.node_classes: Path | None = None
        self.gpu_shares = self.slice_shares = 1
        self.daemon: Daemon | None = None
        self.telemetry = Telemetry()
        self.pods: dict[str, tuple[Obj, tuple[ClaimInfo, ...]]] = {}
        self.plugin_devices: dict[str, dict[str, list[str]]] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.answer_again()

    def answer_again(self) -> None:
        """Have kubelet answer who has which devices."""
        self.pod_resources = PodResourcesServer(
            self.roots.kubelet,
            lambda: [pod for pod, _ in self.pods.values()],
            lambda pod, _: self.pods[pod["metadata"]["name"]][1],
            devices=lambda name: self.plugin_devices.get(name, {}),
        )
        self.pod_resources.start()

    @property
    def roots(self) -> Roots:
        return Roots(
            host=self.machine.host_root,
            driver=self.driver_root,
            cdi=self.folder / "cdi",
            kubelet=self.folder / "k",
            state=self.folder / "state",
        )

    @property
    def service_socket(self) -> Path:
        return self.roots.plugin(DRIVER) / "dra.sock"

    @property
    def registration_socket(self) -> Path:
        return self.roots.registry / f"{DRIVER}-reg.sock"

    def create_node(self) -> None:
        self.api.create(NODES, {"metadata": {"name": self.node}})

    def start(self, *, ready: bool = True) -> None:
        """Start the plugin as a new process would: NVML not initialised, no handle known."""
        sim.nvml.install(self.machine.directory)
        options = Options(
            node_name=self.node,
            driver_name=DRIVER,
            allocator=self.allocator,
            roots=self.roots,
            eager_seconds=self.eager_seconds,
            idle_seconds=self.idle_seconds,
            mps_image=self.mps_image,
            mps_namespace="default",
            mps_pull_secrets=self.mps_pull_secrets,
            binding_conditions=self.binding_conditions,
            node_classes=self.node_classes,
            gpu_shares=self.gpu_shares,
            slice_shares=self.slice_shares,
        )
        self._stop = threading.Event()
        self.telemetry = Telemetry()
        self.daemon = Daemon(options, KubeApi(self.http), self.telemetry)
        self._thread = threading.Thread(target=self.daemon.run, args=(self._stop,))
        self._thread.start()
        wait_for("the registration socket", self.registration_socket.exists)
        if ready:
            wait_for("readiness", lambda: self.is_ready)
            wait_for("claim statuses", self.statuses_idle)
            wait_for("the MigNode", self.published)

    @property
    def is_ready(self) -> bool:
        return self.daemon is not None and self.daemon.common.readiness.is_ready

    def stop(self) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join(timeout=PATIENCE)
            assert not self._thread.is_alive()
            self._thread = None
            sim.nvml.end()

    def restart(self) -> None:
        self.stop()
        self.start()

    def statuses_idle(self) -> bool:
        return self.daemon is not None and self.daemon.statuses.wait_idle(PATIENCE)

    def close(self) -> None:
        self.machine.clear_faults()
        self.stop()
        self.pod_resources.stop()
        self.api.close()
        self.http.close()
        sim.nvml.uninstall()

    # -- claims

    def claim(
        self,
        *devices: str,
        name: str = "",
        namespace: str = "default",
        results: Sequence[Obj] = (),
        config: Sequence[Obj] = (),
        allocated: bool = True,
        expected: bool = False,
        awaited: bool = False,
    ) -> ClaimRef:
        """A claim that was given these devices of this node, one request each.

        With ``expected`` a pod has reserved it, and its label names the node. ``awaited``:
        kube-scheduler waits for its slices.
        """
        name = name or f"claim-{uuid4().hex[:8]}"
        count = max(1, len(devices) + len(results))
        requests = [
            {"name": f"r{i}", "exactly": {"deviceClassName": "mig.dra.dev"}} for i in range(count)
        ]
        labels = {node_label(DRIVER): label_of(self.node)} if expected else {}
        body = {
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {"devices": {"requests": requests}},
        }
        made = self.api.create(RESOURCE_CLAIMS, body)
        ref = ClaimRef(namespace, name, made["metadata"]["uid"])
        if allocated:
            given = [self.result(d, i, awaited=awaited) for i, d in enumerate(devices)]
            self.allocate(ref, [*given, *results], config, reserved=expected)
        return ref

    def result(self, device: str, index: int = 0, *, awaited: bool = False) -> Obj:
        """A device of this node as the result of a request."""
        result = {"request": f"r{index}", "driver": DRIVER, "pool": self.node, "device": device}
        return result | (binding_fields() if awaited else {})

    def allocate(
        self,
        ref: ClaimRef,
        results: Sequence[Obj],
        config: Sequence[Obj] = (),
        *,
        reserved: bool = False,
    ) -> None:
        devices: Obj = {"results": list(results)}
        if config:
            devices["config"] = list(config)
        field = {"key": "metadata.name", "operator": "In", "values": [self.node]}
        allocation = {
            "allocationTimestamp": "2026-01-01T00:00:00Z",
            "devices": devices,
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
        }
        pod = {"resource": "pods", "name": f"pod-of-{ref.name}", "uid": f"pod-of-{ref.uid}"}
        self.set_status(ref, allocation=allocation, **({"reservedFor": [pod]} if reserved else {}))

    def set_status(self, ref: ClaimRef, **status: Any) -> None:
        """Change fields of a claim's status, as controller and scheduler do."""
        self.api.patch(
            RESOURCE_CLAIMS,
            ref.name,
            {"status": status},
            namespace=ref.namespace,
            subresource="status",
        )

    def delete_claim(self, ref: ClaimRef) -> None:
        self.api.delete(RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)

    def claim_status(self, ref: ClaimRef) -> list[Obj]:
        """``status.devices`` once nothing is left to write."""
        assert self.statuses_idle()
        claim = self.api.get(RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)
        devices: list[Obj] = claim.get("status", {}).get("devices", [])
        return devices

    # -- kubelet's side

    def stub(self, channel: grpc.Channel) -> v1_grpc.DRAPluginStub:
        return v1_grpc.DRAPluginStub(channel)

    def channel(self, path: Path | None = None) -> grpc.Channel:
        channel: grpc.Channel = grpc.insecure_channel(f"unix:{path or self.service_socket}")
        return channel

    def prepare(self, ref: ClaimRef) -> v1.NodePrepareResourceResponse:
        with closing(self.channel()) as channel:
            request = v1.NodePrepareResourcesRequest(claims=[wire(ref)])
            answer = self.stub(channel).NodePrepareResources(request, timeout=45)
        assert list(answer.claims) == [ref.uid]
        one: v1.NodePrepareResourceResponse = answer.claims[ref.uid]
        return one

    def prepared(self, ref: ClaimRef) -> list[str]:
        """Prepare, which has to succeed, and be seen on the GPU; the CDI names."""
        answer = self.prepare(ref)
        assert not answer.error, answer.error
        wait_for("the look at the GPU", self.has_looked)
        return [name for d in answer.devices for name in d.cdi_device_ids]

    def own(self, ref: ClaimRef) -> list[str]:
        """Prepare, which has to succeed; the CDI devices that are the claim's own."""
        return [name for name in self.prepared(ref) if "/claim=" in name]

    def run_pod(self, name: str, *refs: ClaimRef, namespace: str = "default") -> None:
        """A pod that kubelet lists from now on, with all devices of prepared claims."""
        held = []
        for ref in refs:
            devices = tuple(
                PreparedDevice((), d.pool_name, d.device_name, tuple(d.cdi_device_ids))
                for d in self.prepare(ref).devices
            )
            held.append(ClaimInfo(ref, devices={DRIVER: devices}))
        metadata = {"name": name, "namespace": namespace}
        pod = {"metadata": metadata, "spec": {"containers": [{"name": "main"}]}}
        self.pods[name] = (pod, tuple(held))

    def refused(self, ref: ClaimRef) -> str:
        """Prepare, which has to fail; the error."""
        answer = self.prepare(ref)
        assert answer.error
        assert not answer.devices
        return answer.error

    def unprepare(self, ref: ClaimRef) -> str:
        with closing(self.channel()) as channel:
            request = v1.NodeUnprepareResourcesRequest(claims=[wire(ref)])
            answer = self.stub(channel).NodeUnprepareResources(request, timeout=45)
        assert list(answer.claims) == [ref.uid]
        return str(answer.claims[ref.uid].error)

    # -- what is there

    def slices(self) -> list[tuple[int, str, int, bool]]:
        """GPU index, profile, start, and whether a compute instance is in it."""
        return sorted(
            (index, self.profile_name(index, g.profile), g.start, bool(g.compute_instances))
            for index, gpu in enumerate(self.machine.state().gpus)
            for g in gpu.gpu_instances
        )

    def profile_name(self, gpu: int, profile_id: int) -> str:
        profile = self.machine.product(gpu).profile(profile_id)
        assert profile is not None
        return profile.name

    def mutations(self) -> list[str]:
        return [c.function for c in self.machine.mutations()]

    def specs(self) -> list[str]:
        """CDI specs but for that which claims have in common."""
        cdi = self.roots.cdi
        names = (p.name for p in cdi.iterdir()) if cdi.is_dir() else ()
        return sorted(name for name in names if name != self.common_path.name)

    @property
    def common_path(self) -> Path:
        return self.roots.cdi / f"k8s.{DRIVER}-driver.yaml"

    def common(self) -> Obj:
        """The CDI spec that claims have in common."""
        spec: Obj = yaml.load(self.common_path.read_bytes(), Loader=yaml.CSafeLoader)
        return spec

    def spec(self, ref: ClaimRef) -> Obj:
        path = self.roots.cdi / f"k8s.{DRIVER}-claim_{ref.uid}.yaml"
        spec: Obj = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)
        return spec

    def journal(self) -> tuple[Entry, ...]:
        """The journal as the disk has it."""
        return Journal(self.roots.state / "journal.json").entries()

    def mignode(self) -> Obj:
        return self.api.get(MIG_NODES, self.node)

    def published_slices(self) -> list[tuple[str, str, int, str]]:
        """GPU name, profile, start and state of every instance in the MigNode."""
        return sorted(
            (gpu["name"], i.get("profile", ""), i["placement"]["start"], i["state"])
            for gpu in self.mignode().get("status", {}).get("gpus", [])
            for i in gpu.get("instances", [])
        )

    def clean(self) -> bool:
        """Whether nothing of any claim is left: hardware, journal, CDI."""
        return not self.slices() and not self.journal() and not self.specs()

    def has_looked(self) -> bool:
        """True if the GPUs were looked at after all that was done, or that cannot be told."""
        if self.daemon is None:
            return True
        units = self.daemon.hardware.units()
        looked_at = any(u.lock.is_held and not u.lock.is_worked_under for u in units)
        return not looked_at and not any(u.look_wanted or u.read_back for u in units)

    def poll(self) -> None:
        """Look at all GPUs, once nobody works on one."""
        assert self.daemon is not None
        wait_for("a look at all GPUs", self.daemon.hardware.poll)

    def published(self) -> bool:
        """Whether the MigNode says what the plugin knows."""
        assert self.daemon is not None
        if not self.has_looked():
            return False
        inventory = self.daemon.inventory.of_mignode()
        found = self.api.list(MIG_NODES, field_selector=f"metadata.name={self.node}").items
        if not found or inventory is None:
            return False
        status, told = found[0].get("status", {}), to_mignode(inventory)["status"]
        # A field that the definition lacks fails a test of its own, not each that waits here.
        wanted = pruned(told, _STATUS)
        for condition in [*status.get("conditions", []), *wanted["conditions"]]:
            condition.pop("lastTransitionTime", None)
        earlier = {
            n: status[n] for n in ("resumed", "lastHeartbeatTime", "takeover") if n in status
        }
        return bool(status == {**earlier, **wanted})


def wire(ref: ClaimRef) -> v1.Claim:
    return v1.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid)


def exists(api: KubeApi, resource: Resource, name: str) -> bool:
    return any(o["metadata"]["name"] == name for o in api.list(resource).items)
