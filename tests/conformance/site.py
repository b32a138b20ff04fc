"""The node and the driver under test, and what a scenario does with them."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dra.common.resources import Obj, at
from hack.cluster.api import Api, ApiError
from hack.cluster.kubelet import KubeletNode
from sim.processes import ClusterError, Process, wait_for
from tests.conformance.description import Description

NAMESPACE = "dra-conformance"
FAILED = "FailedPrepareDynamicResources"
"""Event of a pod: pkg/kubelet/events/event.go."""
RETRY_SECONDS = 150
"""Kubelet repeats a failed Prepare after 60 to 90 s: ``completeWork`` in
pkg/kubelet/pod_workers.go."""
_SETTLE_SECONDS = 120.0
"""Kubelet looks every 60 s for claims whose pods are gone (``reconcilePeriod`` in
pkg/kubelet/cm/dra/manager.go)."""


def limit(seconds: float) -> pytest.MarkDecorator:
    """A scenario's limit of time, without that of its node."""
    return pytest.mark.timeout(seconds, func_only=True)


@dataclass
class Site:
    """``kubelet`` and ``plugin`` are None where somebody else started them."""

    api: Api
    driver: Description
    node: str
    image: str
    run_there: Callable[[str], str] | None
    """Runs one of the driver's commands on the node, if that is possible; returns its output."""
    kubelet: KubeletNode | None = None
    plugin: Process | None = None
    spare: Process | None = None
    """The other plugin of an update; not running between scenarios."""
    programs: Sequence[Process] = ()
    times: dict[str, float] = field(default_factory=dict)
    """Latencies of the scenario, in seconds."""

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Reports how long the block took."""
        began = time.monotonic()
        yield
        self.times[what] = time.monotonic() - began

    def wait(self, what: str, condition: Callable[[], Any], *, timeout: float = 60.0) -> Any:
        return wait_for(what, condition, timeout=timeout, context=self.tails)

    def needs_plugin(self) -> Process:
        if self.plugin is None:
            pytest.skip("this plugin is not the suite's to kill and start")
        return self.plugin

    def needs_kubelet(self) -> KubeletNode:
        if self.kubelet is None:
            pytest.skip("this kubelet is not the suite's to look into and restart")
        return self.kubelet

    def logged(self, *parts: str) -> int:
        """Number of lines of kubelet's log that contain all parts."""
        text = self.needs_kubelet().process.log.read_text(errors="replace")
        return sum(all(each in line for each in parts) for line in text.splitlines())

    @contextmanager
    def logging(self, *parts: str, timeout: float = 60.0) -> Iterator[None]:
        """Ends once kubelet has logged another such line than before the block."""
        before = self.logged(*parts)
        yield
        self.wait(f"kubelet's {parts}", lambda: self.logged(*parts) > before, timeout=timeout)

    def shell(self, command: str) -> str:
        """Output of one of the driver's commands on the node."""
        if self.run_there is None:
            pytest.skip(
                "no --shell, by which the driver's commands are run on the node; or they name "
                "{home} or {kubeconfig}, which a node has that the suite starts"
            )
        return self.run_there(command)

    def registering(self, *, timeout: float = 60.0) -> AbstractContextManager[None]:
        """Ends once kubelet has registered anew what the block started."""
        name = f'driverName="{self.driver.name}"'
        return self.logging('"Registered DRA plugin"', name, timeout=timeout)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The plugin's process is stopped meanwhile: its calls and its sockets hang."""
        plugin = self.needs_plugin()
        os.killpg(plugin.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            if plugin.running:
                os.killpg(plugin.pid, signal.SIGCONT)

    @contextmanager
    def broken(self, how: str) -> Iterator[None]:
        """One of the driver's commands is in force, and undone by ``mends``."""
        self.shell(how)
        try:
            yield
        finally:
            self.shell(self.driver.mends)

    def claim(self, name: str, *requests: Obj) -> dict[str, str]:
        """Makes a claim with one device, or these requests; returns a pod's reference to it."""
        body = self._resource("ResourceClaim", name)
        self.api.create({**body, "spec": self._devices(requests)})
        return {"resourceClaimName": name}

    def template(self, name: str, *requests: Obj) -> dict[str, str]:
        """The same for a template."""
        body = self._resource("ResourceClaimTemplate", name)
        self.api.create({**body, "spec": {"spec": self._devices(requests)}})
        return {"resourceClaimTemplateName": name}

    def request(self, name: str = "device", *, of: str = "", **more: Any) -> Obj:
        """Asks for a device of the driver's class, or of the class ``of``."""
        return {
            "name": name,
            "exactly": {"deviceClassName": of or self.driver.device_class, **more},
        }

    def needs_class(self, name: str, field_name: str) -> str:
        """A class that one of the fields of the driver's file names."""
        if not name:
            pytest.skip(f"no class for it is known ({field_name})")
        if not self.api.find("DeviceClass", name):
            pytest.skip(f"the cluster has no DeviceClass {name} ({field_name})")
        return name

    def health(self, name: str) -> set[str]:
        """Health of the devices of a pod's first container, as kubelet tells it."""
        (status, *_) = self.pod(name)["status"]["containerStatuses"]
        told = status.get("allocatedResourcesStatus", [])
        return {each["health"] for claim in told for each in claim["resources"]}

    def start(
        self,
        name: str,
        claims: Mapping[str, dict[str, str]],
        *,
        containers: Mapping[str, Sequence[Obj]] | None = None,
        init: bool = False,
        seconds: int = 0,
    ) -> None:
        """Creates a pod that stays.

        Args:
            name: of the pod.
            claims: its references, by name.
            containers: which claims each uses; one container, ``main``, that uses all unless given.
            init: whether an init container ``init`` uses all of them before, for two seconds.
            seconds: after which each container ends, and is restarted; they stay if 0.
        """
        used = containers or {"main": [{"name": each} for each in claims]}
        body: Obj = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": self.node},
                "automountServiceAccountToken": False,
                "hostNetwork": True,
                "restartPolicy": "Always" if seconds else "Never",
                "terminationGracePeriodSeconds": 0,
                "resourceClaims": [{"name": n, **source} for n, source in claims.items()],
                "containers": [
                    self._container(each, refs, f"sleep {seconds or 1000000}")
                    for each, refs in used.items()
                ],
            },
        }
        if init:
            refs = [{"name": each} for each in claims]
            body["spec"]["initContainers"] = [self._container("init", refs, "sleep 2")]
        self.api.create(body)

    def run(self, name: str, claims: Mapping[str, dict[str, str]], **how: Any) -> list[str]:
        """Starts a pod, waits until it runs; returns what its last container sees."""
        with self.timed(f"{name} runs"):
            self.start(name, claims, **how)
            self.wait_for_running(name)
        return self.seen(name, [*(how.get("containers") or ["main"])][-1])

    def wait_for_running(self, name: str, *, timeout: float = 100.0) -> None:
        self.wait(
            f"running pod {name}",
            lambda: at(self.pod(name), "status", "phase") == "Running",
            timeout=timeout,
        )

    def pod(self, name: str) -> Obj:
        return self.api.get("Pod", name, namespace=NAMESPACE)

    def container(self, name: str) -> tuple[str, int]:
        """The id of a pod's first container, and how often it was restarted."""
        status = self.pod(name)["status"]["containerStatuses"][0]
        return status["containerID"], status["restartCount"]

    def seen(self, name: str, container: str = "main") -> list[str]:
        """The devices that a container saw when it started."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/log?container={container}"
        text = self.wait("log", lambda: self._log(path), timeout=20)
        return sorted(line for line in text.partition("end of devices")[0].splitlines() if line)

    def _log(self, path: str) -> str:
        text = str(self.api.request("GET", path).get("text", ""))
        return text if "end of devices" in text else ""

    def claim_of(self, name: str) -> Obj:
        """The only claim of a pod."""
        (status,) = self.pod(name)["status"]["resourceClaimStatuses"]
        return self.api.get("ResourceClaim", status["resourceClaimName"], namespace=NAMESPACE)

    def results(self, claim: Obj) -> list[Obj]:
        found: list[Obj] = claim["status"]["allocation"]["devices"]["results"]
        return found

    def events(self, name: str, reason: str, words: str = "") -> bool:
        """True if a pod was told of something, and not one of the same name before it."""
        uid = self.pod(name)["metadata"]["uid"]
        found = self.api.list("Event", namespace=NAMESPACE)
        told = (e for e in found if (e["reason"], e["involvedObject"].get("uid")) == (reason, uid))
        return any(words in each.get("message", "") for each in told)

    def delete(self, name: str, *, grace: int | None = None) -> None:
        """Deletes a pod, and waits until it is gone."""
        self.begin_deletion(name, grace=grace)
        self.wait("end of pod", lambda: self.is_gone(name))

    def begin_deletion(self, name: str, *, grace: int | None = None) -> None:
        self.api.delete("Pod", name, namespace=NAMESPACE, grace=grace)

    def is_gone(self, name: str) -> bool:
        return self.api.find("Pod", name, namespace=NAMESPACE) is None

    def left(self) -> list[str]:
        """Words that the driver's file prints of what is prepared."""
        return self.shell(self.driver.left).split()

    def wait_for_nothing_left(self) -> None:
        self.wait(
            "node without anything prepared",
            lambda: not self.left(),
            timeout=_SETTLE_SECONDS,
        )

    def slices(self) -> list[Obj]:
        """The driver's ResourceSlices of the node."""
        found = self.api.list("ResourceSlice", fieldSelector=f"spec.nodeName={self.node}")
        return [each for each in found if each["spec"]["driver"] == self.driver.name]

    def devices(self) -> list[str]:
        """Names of the devices in them."""
        return sorted(d["name"] for s in self.slices() for d in s["spec"].get("devices", []))

    def clear(self) -> None:
        """Deletes what the scenario made, and waits until the node is as it was."""
        if self.spare is not None:
            self.spare.stop()
        for kind in ("Pod", "ResourceClaim", "ResourceClaimTemplate"):
            for each in self.api.list(kind, namespace=NAMESPACE):
                self.api.delete(kind, each["metadata"]["name"], namespace=NAMESPACE)
        for kind in ("Pod", "ResourceClaim"):
            self.wait(f"end of each {kind}", lambda: not self.api.list(kind, namespace=NAMESPACE))  # noqa: B023 - asked at once
        if self.run_there is not None:
            self.wait_for_nothing_left()

    def tails(self) -> str:
        """Events, and the ends of the logs of what the suite started."""
        parts = [each for each in (self.kubelet, self.plugin, self.spare, *self.programs) if each]
        logs = [p.tails() if isinstance(p, KubeletNode) else p.tail() for p in parts]
        try:
            told = [
                f"{e['involvedObject']['name']} {e['reason']}: {e.get('message')}"
                for e in self.api.list("Event", namespace=NAMESPACE)
            ]
        except (OSError, ApiError) as error:
            told = [str(error)]
        return "\n".join([*told, *logs])

    def _container(self, name: str, claims: Sequence[Obj], then: str) -> Obj:
        script = f"{self.driver.seen}\necho end of devices\n{then}"
        return {
            "name": name,
            "image": self.image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", script],
            "resources": {"claims": list(claims)},
        }

    def _resource(self, kind: str, name: str) -> Obj:
        meta = {"name": name, "namespace": NAMESPACE}
        return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": meta}

    def _devices(self, requests: Sequence[Obj]) -> Obj:
        return {"devices": {"requests": list(requests) or [self.request()]}}


def shell_of(
    placeholders: Mapping[str, str], environment: Mapping[str, str], *, shell: str = "sh -c"
) -> Callable[[str], str]:
    """Runs commands of a driver's file by ``shell``, which takes one as its last argument."""

    def run(command: str) -> str:
        """Raises ClusterError if the command fails."""
        done = subprocess.run(
            [*shlex.split(shell), filled(command, placeholders)],
            env=dict(environment),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if done.returncode:
            raise ClusterError(f"{command!r} of the driver's file fails: {done.stderr}")
        return done.stdout

    return run


def filled(command: str, placeholders: Mapping[str, str]) -> str:
    """A command with its placeholders replaced; other braces are left alone."""
    for name, value in placeholders.items():
        command = command.replace(f"{{{name}}}", value)
    return command


def search_path(assets: Path) -> str:
    return f"{os.environ.get('PATH', os.defpath)}:{assets}"
