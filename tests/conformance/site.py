"""The node and the driver under test, and what a scenario does with them."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
_SETTLE_SECONDS = 120.0
"""Kubelet looks every 60 s for claims whose pods are gone (``reconcilePeriod`` in
pkg/kubelet/cm/dra/manager.go)."""


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
            pytest.skip("the driver's file names no plugin to kill and start")
        return self.plugin

    def needs_kubelet(self) -> KubeletNode:
        if self.kubelet is None:
            pytest.skip("this kubelet is not the suite's to look into and restart")
        return self.kubelet

    def registrations(self) -> int:
        """How often kubelet has registered the plugin."""
        text = self.needs_kubelet().process.log.read_text()
        wanted = ('"Registered DRA plugin"', f'driverName="{self.driver.name}"')
        return sum(all(each in line for each in wanted) for line in text.splitlines())

    def shell(self, command: str) -> str:
        """Output of one of the driver's commands on the node."""
        if self.run_there is None:
            pytest.skip("no --shell, by which the driver's commands are run on the node")
        return self.run_there(command)

    @contextmanager
    def registering(self) -> Iterator[None]:
        """Ends once kubelet has registered anew what the block started."""
        before = self.registrations()
        yield
        self.wait("registration", lambda: self.registrations() > before)

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

    def request(self, name: str = "device", **more: Any) -> Obj:
        return {"name": name, "exactly": {"deviceClassName": self.driver.device_class, **more}}

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
            init: whether an init container ``init`` uses all of them before.
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
            body["spec"]["initContainers"] = [self._container("init", refs, "true")]
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

    def events(self, name: str, reason: str) -> bool:
        """Whether a pod was told of something."""
        found = self.api.list("Event", namespace=NAMESPACE)
        return any(e["reason"] == reason and e["involvedObject"]["name"] == name for e in found)

    def delete(self, name: str, *, grace: int | None = None) -> None:
        """Deletes a pod, and waits until it is gone."""
        self.api.delete("Pod", name, namespace=NAMESPACE, grace=grace)
        self.wait("end of pod", lambda: self.api.find("Pod", name, namespace=NAMESPACE) is None)

    def wait_for_nothing_left(self) -> None:
        self.wait(
            "node without anything prepared",
            lambda: not self.shell(self.driver.left).strip(),
            timeout=_SETTLE_SECONDS,
        )

    def slices(self) -> list[Obj]:
        """The driver's ResourceSlices of the node."""
        found = self.api.list("ResourceSlice", fieldSelector=f"spec.nodeName={self.node}")
        return [each for each in found if each["spec"]["driver"] == self.driver.name]

    def clear(self) -> None:
        """Deletes what the scenario made, and waits until the node is as it was."""
        for kind in ("Pod", "ResourceClaim", "ResourceClaimTemplate"):
            for each in self.api.list(kind, namespace=NAMESPACE):
                self.api.delete(kind, each["metadata"]["name"], namespace=NAMESPACE)
        for kind in ("Pod", "ResourceClaim"):
            self.wait(f"end of each {kind}", lambda: not self.api.list(kind, namespace=NAMESPACE))  # noqa: B023 - asked at once
        if self.run_there is not None:
            self.wait_for_nothing_left()

    def tails(self) -> str:
        """Events, and the ends of the logs of what the suite started."""
        parts = [each for each in (self.kubelet, self.plugin, *self.programs) if each]
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
