"""MPS daemons of this node's claims: started, kept running, stopped, swept.

Each daemon is a pod, which outlives the node program. Files in the claim's directory tell whether
the daemon is ready, and with which settings; they can be read without the API server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from cdi.spec import Edits, Mount
from dra.common.resources import PODS, Obj, at
from dra.gpu.inventory import ClaimRef
from dra.kube.errors import AlreadyExistsError, ForbiddenError, KubeError, ObjectNotFoundError
from kubeletplugin.claims.sharing.mps_pod import (
    COMPONENT,
    COMPONENT_LABEL,
    CONTROL,
    PIPES,
    SERVER,
    Places,
    Settings,
    daemon_pod,
    pod_name,
)
from kubeletplugin.claims.specs import daemon_nodes
from kubeletplugin.common import Common
from kubeletplugin.errors import DeviceError, HardwareError, HostError, StartingError
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.host.driverfiles import DriverFiles
from kubeletplugin.journal.entries import Entry, MpsLimits
from kubeletplugin.publishing.mignode import node_owner
from kubeletplugin.telemetry.observer import about
from kubeletplugin.times import DAEMON_ASK_SECONDS, DAEMON_LOOK_SECONDS, DAEMON_SECONDS

_log = logging.getLogger(__name__)
_ENDED: Final = frozenset({"Failed", "Succeeded"})


class MpsDaemons:
    """Starts and ends the MPS daemons. The caller makes sure that nothing else works on the claim.

    Without the option ``mps_image`` no daemon is started. ``files``: returns the driver's files.
    """

    def __init__(
        self, common: Common, hardware: Hardware, files: Callable[[], DriverFiles]
    ) -> None:
        self._api = common.api
        self._options = common.options
        self._namespace = common.options.mps_namespace
        self._roots = common.options.roots
        self._folder = common.options.roots.state / "mps"
        self._hardware = hardware
        self._files = files
        self._clock = common.clock

    def check(self) -> None:
        """Check that daemons can run on this node.

        Raises:
            DeviceError: they cannot; the message says what is missing, and the remedy.
        """
        if not self._options.mps_image:
            raise DeviceError(
                "sharing.strategy 'MPS' is not enabled on this node; have the administrator enable "
                "it (chart: mps.enabled), or choose sharing.strategy 'None'"
            )
        files = self._files()
        if missing := [name for name in (CONTROL, SERVER) if name not in files.programs]:
            raise DeviceError(
                f"there is no MPS without {' and '.join(missing)}, {files.searched}, or choose "
                "sharing.strategy 'None'"
            )

    def begin(self, entry: Entry) -> None:
        """Start the daemon of an entry's claim and wait until it is ready with the entry's limits.

        Raises:
            DeviceError: no daemon can run on this node.
            StartingError: the daemon's pod cannot be made or read.
            HostError: the daemon is not ready in time; the message says how far it is.
        """
        self.check()
        settings, places = self._settings(entry), self._places(entry.claim.uid)
        if places.settings() == str(settings):
            return
        places.make(self._roots)
        now = self._clock.monotonic()
        end, ask, state = now + DAEMON_SECONDS, now, ""
        while places.settings() != str(settings):
            now = self._clock.monotonic()
            if now >= ask:
                state = self._have_pod(entry.claim, settings, places)
                ask = now + DAEMON_ASK_SECONDS
            if now >= end:
                raise HostError(
                    f"the MPS daemon of the claim is not ready after {DAEMON_SECONDS:g} s: "
                    f"{self._pod(entry.claim.uid)} {state}; look at its log, it is tried again"
                )
            self._clock.sleep(DAEMON_LOOK_SECONDS)
        _log.info("MPS daemon is ready", extra=about(entry.claim))

    def keep(self, entry: Entry) -> str:
        """Start the daemon again if its pod is gone or has ended, without waiting for it.

        Returns text on the state of its pod; empty if the daemon serves.

        Raises:
            StartingError: the daemon's pod cannot be made or read.
            HostError: the claim's directory cannot be made.
        """
        settings, places = self._settings(entry), self._places(entry.claim.uid)
        if places.settings() == str(settings):
            return ""
        places.make(self._roots)
        state = self._have_pod(entry.claim, settings, places)
        return f"{self._pod(entry.claim.uid)} {state}"

    def stop(self, uid: str) -> None:
        """Delete the pod of a claim's daemon, if there is one; returns if nothing of it is left.

        Raises:
            HardwareError: the daemon still runs, or that is not known; to be tried again.
            HostError: the claim's directory cannot be removed.
        """
        places = self._places(uid)
        if not places.folder.exists():
            return
        pod = self._pod(uid)
        try:
            self._api.delete(PODS, pod_name(uid), namespace=self._namespace)
            self._api.get(PODS, pod_name(uid), namespace=self._namespace)
        except ObjectNotFoundError:
            if places.is_alive():
                raise HardwareError(
                    f"the claim's MPS daemon holds the device: {pod} is gone and its processes "
                    "still run; end nvidia-cuda-mps-control and nvidia-cuda-mps-server on the node",
                    passing=True,
                ) from None
        except KubeError as error:
            raise HardwareError(
                f"the claim's MPS daemon holds the device: {pod} cannot be deleted: {error}",
                passing=True,
            ) from error
        else:
            raise HardwareError(
                f"the claim's MPS daemon holds the device: {pod} is being deleted and has not "
                "ended; if that lasts, look at it and at kubelet",
                passing=True,
            )
        places.remove()

    def edits(self, entry: Entry) -> Edits:
        """Edits of a container that is a client of the claim's daemon.

        The limits in the environment bind only clients that do not change it. The daemon has the
        same limits.
        """
        places, limits = self._places(entry.claim.uid), entry.mps or MpsLimits()
        env = [f"CUDA_MPS_PIPE_DIRECTORY={PIPES}"]
        if limits.threads is not None:
            env.append(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={limits.threads}")
        if limits.mebibytes is not None:
            env.append(f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={limits.mebibytes}M")
        return Edits(
            env=tuple(env),
            mounts=(
                Mount(str(places.pipe), PIPES, writable=True),
                Mount(str(places.shm), "/dev/shm", writable=True),  # noqa: S108 - in the container
            ),
        )

    def sweep(self, known: Iterable[str]) -> None:
        """Remove the daemons of this node whose claims are not ``known`` (UIDs).

        Raises:
            KubeError: pods cannot be listed or deleted.
            HostError: a directory cannot be removed.
        """
        if not self._options.mps_image and not self._folder.is_dir():
            return
        kept = set(known)
        label = f"{COMPONENT_LABEL}={COMPONENT}"
        here = f"spec.nodeName={self._options.node_name}"
        pods = self._api.list(
            PODS, namespace=self._namespace, label_selector=label, field_selector=here
        ).items
        names = {pod_name(uid) for uid in kept}
        for pod in pods:
            name = pod["metadata"]["name"]
            if name not in names and "deletionTimestamp" not in pod["metadata"]:
                self._api.delete(PODS, name, namespace=self._namespace)
                _log.warning("removed pod %s of no claim", name)
        present = {pod["metadata"]["name"] for pod in pods}
        for folder in self._folder.iterdir() if self._folder.is_dir() else ():
            places = Places(folder)
            stray = folder.name not in kept and pod_name(folder.name) not in present
            if stray and not places.is_alive():
                places.remove()

    def _have_pod(self, claim: ClaimRef, settings: Settings, places: Places) -> str:
        """Make the claim's pod, or delete one that has ended or has other settings.

        Returns text on the state of the pod.
        """
        if not self._options.mps_image:
            return "is not enabled"
        name = pod_name(claim.uid)
        try:
            owner = node_owner(self._api, self._options.node_name)
            body = daemon_pod(
                claim,
                settings,
                options=self._options,
                owner=owner,
                places=places,
                files=self._files(),
            )
            try:
                self._api.create(PODS, body)
            except AlreadyExistsError:
                found = self._api.get(PODS, name, namespace=self._namespace)
            else:
                return "was just made"
            if "deletionTimestamp" in found["metadata"]:
                return "with other settings is being deleted"
            if _settings_of(found) != str(settings) or _phase(found) in _ENDED:
                uid = found["metadata"]["uid"]
                self._api.delete(PODS, name, namespace=self._namespace, uid=uid)
                return "is replaced"
        except ObjectNotFoundError:
            return "is gone"
        except ForbiddenError as error:
            raise StartingError(
                f"not allowed to make {self._pod(claim.uid)}: {error}; grant this plugin's service "
                "account get, list, create and delete on pods there (chart: mps.enabled)"
            ) from error
        except KubeError as error:
            raise StartingError(f"cannot make {self._pod(claim.uid)}: {error}") from error
        return _state(found)

    def _settings(self, entry: Entry) -> Settings:
        limits = entry.mps or MpsLimits()
        device = entry.mig_uuid if entry.placement is not None else entry.gpu
        nodes = tuple(
            f"{n.path}:{n.major}:{n.minor}"
            for n in daemon_nodes(self._hardware, self._roots, entry)
        )
        return Settings(device, self._hardware.boot_id, nodes, limits.threads, limits.mebibytes)

    def _places(self, uid: str) -> Places:
        return Places(self._folder / uid)

    def _pod(self, uid: str) -> str:
        return f"pod {self._namespace}/{pod_name(uid)}"


def _phase(pod: Obj) -> str:
    return str(at(pod, "status", "phase", default=""))


def _settings_of(pod: Obj) -> str:
    containers = at(pod, "spec", "containers")
    env = at(containers[0], "env") if containers else ()
    return next((str(e.get("value", "")) for e in env if e["name"] == "SETTINGS"), "")


def _state(pod: Obj) -> str:
    """Text on the state of a pod, from its status."""
    for status in at(pod, "status", "containerStatuses"):
        for phase in ("waiting", "terminated"):
            found = at(status, "state", phase, default={}) or {}
            if found:
                last = at(status, "lastState", "terminated", "message", default="")
                words = (found.get("reason"), found.get("message"), last)
                return f"is {phase}: {'; '.join(str(w).strip() for w in words if w)}"
    return f"is {_phase(pod) or 'not started'}"
