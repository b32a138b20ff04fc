"""The Node of these GPUs: other managers of its GPUs, its labels and its class.

Two managers of one GPU give the same slice to two pods, or destroy a slice that a pod uses.
"""

from __future__ import annotations

import fnmatch
import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dra.claims.reasons import NodeReason
from dra.common.resources import NODES, RESOURCE_SLICES, Obj
from dra.common.runtimes import runtime_of
from dra.gpu.layouts import SUFFIXES, Choice, Classes, choose, read_files
from dra.gpu.names import DEFAULT_DRIVER, NVIDIA_DRIVER
from dra.kube.client import KubeApi
from dra.kube.errors import KubeError
from dra.kube.http import whole
from dra.kube.reflector import Change, Reflector
from dra.resourceslices.nvidiadra import DEPLOY_LABEL, dra_driver, summary
from kubeletplugin.common import Common
from kubeletplugin.errors import HostError
from kubeletplugin.gpus.gpu import Conflict
from kubeletplugin.host.processes import runs_mig_manager
from kubeletplugin.options import Options
from kubeletplugin.sockets import listeners

_log = logging.getLogger(__name__)
_CONFIG = "nvidia.com/mig.config"
_STATE = "nvidia.com/mig.config.state"
_DEPLOY = "nvidia.com/gpu.deploy.mig-manager"
_OFF = f"keep mig-manager off this node: set the label {_DEPLOY} to false"
_WHOLE = "nvidia.com/gpu"
_SLICES = "nvidia.com/mig-"
# A value that is neither true nor false keeps its own words in front: x_paused-for-driver-upgrade.
_PAUSED = re.compile(r"(^|_)paused-for-")
_DESTROYS = (
    "whenever it starts with DynamicMIG, it destroys every MIG device that it does not know and "
    "turns MIG mode off where none is left"
)
_GIVES_OUT = "it gives out GPUs, and the MIG devices that it finds when it starts, ours among them"
_UNKNOWN = Choice("", problem="the labels of the Node are not known yet", passing=True)


def conflict(
    node: Mapping[str, Any],
    summaries: Iterable[Mapping[str, Any]] = (),
    *,
    makes_layouts: bool = False,
    runs_mig_manager: Callable[[], bool] = lambda: False,
) -> Conflict | None:
    """Find another manager of a Node's GPUs; of several the most dangerous one.

    ``node``: the Node (core/v1, as JSON). ``summaries``: summaries of the ResourceSlices that
    NVIDIA's DRA driver has published for the Node. ``makes_layouts``: this program makes the
    layouts of the GPUs, so that mig-manager must not run. ``runs_mig_manager``: True if
    mig-manager's program runs on the node; called only where labels do not settle it.
    """
    labels = node.get("metadata", {}).get("labels") or {}
    return (
        _mig_manager(labels, makes_layouts=makes_layouts, runs=runs_mig_manager)
        or _dra_driver(node, summaries)
        or _device_plugin(node)
    )


def _mig_manager(
    labels: Mapping[str, str], *, makes_layouts: bool, runs: Callable[[], bool]
) -> Conflict | None:
    """Conflict with mig-manager.

    It is at work while ``nvidia.com/mig.config`` is set and ``nvidia.com/mig.config.state`` is not
    ``success``. These labels say nothing where mig-manager is switched off: the GPU operator sets
    ``mig.config`` to ``all-disabled`` on each node that has none, and the state stays as it was if
    mig-manager was ended in the middle of a change (gpu-operator, nodelabeling_controller.go,
    updateGPUStateLabels).
    """
    config, state, deploy = (labels.get(key, "") for key in (_CONFIG, _STATE, _DEPLOY))
    waits = bool(config) and state != "success"
    passing = False
    if deploy == "false":
        # Its DaemonSet selects nodes by this label; a pod that ends may still change GPUs.
        if not (waits or makes_layouts) or not runs():
            return None
        passing = True
        problem = (
            f"mig-manager is switched off on this node ({_DEPLOY}=false) and still runs; wait "
            "until its pod is gone, or remove it where the GPU operator did not install it"
        )
    elif makes_layouts:
        if not deploy:
            return None  # the GPU operator runs it by that label
        problem = (
            f"mig-manager is to run on this node ({_DEPLOY}={deploy}), where layouts are made by "
            f"this plugin; set the label {_DEPLOY} to false, or take the class of the node away"
        )
    elif not waits:
        return None
    elif state == "failed":
        problem = (
            f"mig-manager failed to change this node's GPUs ({_CONFIG}={config}, {_STATE}=failed) "
            f"and tries no more; see its log and set {_CONFIG} to a configuration that it can "
            f"make, or {_OFF}"
        )
    else:
        passing = True
        problem = (
            f"mig-manager is changing this node's GPUs ({_CONFIG}={config}, "
            f"{_STATE}={state or 'not set'}); wait for the state success, or {_OFF}"
        )
    return Conflict(NodeReason.MIG_MANAGER, problem, frozen=True, passing=passing)


def _dra_driver(node: Mapping[str, Any], summaries: Iterable[Mapping[str, Any]]) -> Conflict | None:
    """Conflict with NVIDIA's DRA driver.

    GPUs are frozen where that driver makes MIG devices, as any MIG device here may be its own.
    """
    found = dra_driver(node, summaries)
    if found is None:
        return None
    return Conflict(
        NodeReason.NVIDIA_DRA,
        f"NVIDIA's DRA driver manages this node's GPUs too ({found.sign}): "
        f"{_DESTROYS if found.makes_devices else _GIVES_OUT}; keep it off this node (label "
        f"{DEPLOY_LABEL}=false where the GPU operator installs it, the node affinity of its chart "
        "otherwise), or pass --ignore-other-managers if it serves other GPUs only",
        frozen=found.makes_devices,
    )


def _device_plugin(node: Mapping[str, Any]) -> Conflict | None:
    """Conflict with a device plugin, told by ``status.allocatable``."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    given = sorted(
        f"{name}: {count}"
        for name, count in allocatable.items()
        if (name == _WHOLE or name.startswith(_SLICES)) and str(count) != "0"
    )
    if not given:
        return None
    return Conflict(
        NodeReason.DEVICE_PLUGIN,
        f"a device plugin gives out this node's GPUs too ({', '.join(given)}); "
        "keep it off this node, or pass --ignore-other-managers if it serves other GPUs",
    )


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause that a label of the Node asks for: GPU clients of the node are to stop for a while.

    ``label``: that label, as ``key=value``. NVIDIA's driver-manager and MIG manager set labels
    ``nvidia.com/gpu.deploy.*`` to a value with ``paused-for-`` before they unload the driver or
    change MIG mode, and put the former value back when they are done.
    """

    label: str

    @property
    def conflict(self) -> Conflict:
        """Reason why no slice is made on the node's GPUs during the pause."""
        return Conflict(
            NodeReason.PAUSED,
            f"GPU clients of this node are to pause (label {self.label}): nothing new is prepared "
            f"until {self.label.partition('=')[0]} is true again or gone",
            passing=True,
        )


def pause_of(node: Mapping[str, Any], keys: Iterable[str]) -> Pause | None:
    """Pause that a Node (core/v1, as JSON) asks for by a label whose key matches one of ``keys``.

    The keys may have wildcards. None if the Node asks for no pause.
    """
    labels = node.get("metadata", {}).get("labels") or {}
    wanted = tuple(keys)
    for key, value in sorted(labels.items()):
        if _PAUSED.search(value) and any(fnmatch.fnmatchcase(key, k) for k in wanted):
            return Pause(f"{key}={value}")
    return None


@dataclass(frozen=True, slots=True)
class ShareOffers:
    """Numbers of claims that may have a device at the same time; 0: one claim has it alone.

    ``whole``: of GPUs outside MIG mode. ``slices``: of slices, on GPUs in MIG mode.
    """

    whole: int = 0
    slices: int = 0


def _offer(shares: int) -> int:
    return shares if shares > 1 else 0


class NodeWatch:
    """Watch of the Node and of NVIDIA's ResourceSlices for it. Thread-safe.

    ``on_conflict``: called with the conflict when another manager appears, and with None when no
    other manager is left; never called with ``--ignore-other-managers``.
    ``on_pause``: called with the pause when one is asked for, and with None at its end.
    ``on_labels``: called when the Node's labels have changed, which may choose another class.
    ``on_namesake``: called if this program serves under NVIDIA's driver name and NVIDIA's own
    driver publishes under that name here.
    """

    def __init__(
        self,
        common: Common,
        *,
        on_conflict: Callable[[Conflict | None], None],
        on_pause: Callable[[Pause | None], None],
        on_labels: Callable[[], None],
        on_namesake: Callable[[], None],
    ) -> None:
        self._api, self._options, self._reports = common.api, common.options, common.reports
        self._on_conflict = on_conflict
        self._on_pause = on_pause
        self._on_labels = on_labels
        self._on_namesake = on_namesake
        options = common.options
        self._files = None if options.node_classes is None else ClassFiles(options.node_classes)
        self._lock = threading.Lock()
        self._current: Conflict | None = None
        self._pause: Pause | None = None
        self._labels: Mapping[str, str] | None = None
        self.runtime = ""
        """The container runtime and its version, as the Node says; empty while it is not known."""
        self._default = ShareOffers(_offer(options.gpu_shares), _offer(options.slice_shares))
        self._shares = self._default
        self._node: Obj = {}
        self._listed: list[Obj] = []
        self._nodes = Reflector(
            common.api,
            NODES,
            field_selector=f"metadata.name={options.node_name}",
            on_event=self._changed,
        )
        self._of_nvidia = f"spec.nodeName={options.node_name},spec.driver={NVIDIA_DRIVER}"
        self._slices = Reflector(
            common.api,
            RESOURCE_SLICES,
            field_selector=self._of_nvidia,
            keep=_summary,
            on_event=lambda _: self._judge(),
            on_listed=self._judge,
        )
        self._named_as_nvidias = options.driver_name == NVIDIA_DRIVER
        self._watches_slices = self._named_as_nvidias or not options.ignore_other_managers

    @property
    def pause(self) -> Pause | None:
        """The pause that is asked for now; None if none is."""
        return self._pause

    def choice(self) -> Choice | None:
        """Layout, MIG mode and shares that the Node's class asks for; None without any classes.

        To be called by one thread only.
        """
        if self._files is None:
            return None
        labels = self._labels
        if labels is None:
            return _UNKNOWN
        return choose(labels, self._files.read(), driver=self._options.driver_name)

    def shares(self) -> ShareOffers:
        """Offers to several claims, by the Node's class, or else by this program's options.

        While the class is not known or has a problem, the offers stay as they were. To be called by
        one thread only.
        """
        choice = self.choice()
        if choice is None:
            self._shares = self._default
        elif not choice.problem:
            self._shares = ShareOffers(
                _offer(choice.shares) or self._default.whole,
                _offer(choice.slice_shares) or self._default.slices,
            )
        return self._shares

    def start(self) -> None:
        """Begin to watch."""
        self._nodes.start()
        if self._watches_slices:
            self._slices.start()

    def stop(self) -> None:
        """End the watches."""
        self._nodes.stop()
        self._slices.stop()

    def other_manager(self, labels: Iterable[str]) -> str:
        """Ask the API server if another manager may still give GPUs out; the reason, or empty.

        ``labels``: keys of the Node's labels that have to be ``false``, which keeps others off it.
        """
        if self._options.ignore_other_managers:
            return "this plugin runs with --ignore-other-managers and looks for no other"
        if not self.look():
            return "the API server does not answer"
        other = self._current or (self._pause.conflict if self._pause is not None else None)
        if other is not None:
            return other.problem
        found = {key: (self._labels or {}).get(key) for key in labels}
        wrong = ", ".join(f"{k}={v or ''}" for k, v in found.items() if v != "false")
        return f"labels of the Node are to be false: {wrong}" if wrong else ""

    def look(self) -> bool:
        """Read the Node, and NVIDIA's ResourceSlices; without an answer False, and no change."""
        name = self._options.node_name
        try:
            node = self._api.get(NODES, name)
            if self._watches_slices:
                self._listed = self._api.list(
                    RESOURCE_SLICES,
                    field_selector=self._of_nvidia,
                    keep=_summary,
                ).items
        except KubeError as error:
            _log.warning("node %s: %s", name, error)
            return False
        self._judge(node)
        return True

    def look_again(self) -> None:
        """Decide anew if mig-manager is the conflict: no watch tells that its program has ended."""
        current = self._current
        if current is not None and current.reason is NodeReason.MIG_MANAGER:
            self._judge()

    def _changed(self, change: Change) -> None:
        if change.new is not None:
            self._judge(change.new)

    def _judge(self, node: Obj | None = None) -> None:
        """Decide anew who else manages the GPUs; ``node``: the Node's new state, None if the same.

        Takes the lock.
        """
        if node is not None:
            self._see(node)
        with self._lock:
            if node is not None:
                self._node = node
            slices = self._slices.store.list() if self._slices.synced else self._listed
            if self._named_as_nvidias and dra_driver({}, slices) is not None:
                self._on_namesake()
            found = None
            if not self._options.ignore_other_managers:
                found = conflict(
                    self._node,
                    slices,
                    makes_layouts=self._files is not None,
                    runs_mig_manager=lambda: runs_mig_manager(self._options.roots),
                )
            if found == self._current:
                return
            self._current = found
            self._on_conflict(found)
        if found is None:
            _log.info("no other program manages this node's GPUs any more")
            return
        text = f"GPUs are unavailable: {found.problem}"
        _log.warning("%s", text)
        self._reports.report_node(found.reason, text, warning=True)

    def _see(self, node: Obj) -> None:
        """Take note of the Node's runtime, and of labels that ask for a pause or choose a class."""
        self.runtime = runtime_of(node)
        with self._lock:
            before, self._pause = self._pause, pause_of(node, self._options.pause_labels)
            pause = self._pause
        if pause != before:
            self._on_pause(pause)
            if pause is None:
                _log.info("GPU clients of this node are not to pause any more")
            elif before is None:
                _log.warning("%s", pause.conflict.problem)
                self._reports.report_node(NodeReason.PAUSED, pause.conflict.problem)
        labels = dict((node.get("metadata") or {}).get("labels") or {})
        if labels != self._labels:
            self._labels = labels
            if self._files is not None:
                self._on_labels()


def refuse_namesake(options: Options, api: KubeApi) -> None:
    """Refuse to serve under NVIDIA's driver name if NVIDIA's own driver serves this node.

    Nothing is done under another name. Of two plugins with one name, kubelet calls the one that
    registered last, whoever made the claim's slices, and each would take the other's
    ResourceSlices for its own leftovers. To be called by the program that has the node's GPUs
    before it has sockets. If the API server does not answer, only sockets are looked at:
    :class:`NodeWatch` looks again.

    Raises:
        HostError: NVIDIA's driver is here; says where that was seen, and the remedies.
    """
    if options.driver_name != NVIDIA_DRIVER:
        return
    heard = listeners(options)
    seen = f"somebody listens on {heard[0]}" if heard else _published(options, api)
    if seen:
        raise HostError(
            f"NVIDIA's own DRA driver serves this node as {NVIDIA_DRIVER} ({seen}), and two "
            "plugins of one name cannot: keep it off this node "
            f"(label {DEPLOY_LABEL}=false where the GPU operator installs it, the node affinity of "
            f"its chart otherwise), or start this one with --driver-name={DEFAULT_DRIVER}; kubelet "
            "removes its ResourceSlices half a minute after its end"
        )


def _summary(raw: msgspec.Raw) -> Obj:
    return summary(whole(raw))


def _published(options: Options, api: KubeApi) -> str:
    selector = f"spec.nodeName={options.node_name},spec.driver={NVIDIA_DRIVER}"
    try:
        found = api.list(RESOURCE_SLICES, field_selector=selector, keep=_summary).items
    except KubeError as error:
        _log.warning("ResourceSlices of %s cannot be looked for: %s", NVIDIA_DRIVER, error)
        return ""
    theirs = dra_driver({}, found)
    return theirs.sign if theirs is not None else ""


class ClassFiles:
    """Files of ``folder`` that configure classes of nodes, read anew when one has changed.

    A file is either a ``MigNodeClass``, whose file name is the name of the class, or a
    configuration of mig-parted, whose layouts every class can name. The directory is a mounted
    ConfigMap, in which kubelet may replace files at any time. To be used by one thread only.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stamp: object = None
        self._known = Classes({}, {}, {})

    def read(self) -> Classes:
        """Content of the files now. Never raises: the result names the problem of each bad file."""
        stamp = self._look()
        if stamp != self._stamp:
            self._stamp, self._known = stamp, read_classes(self._folder)
            for name, problem in self._known.problems.items():
                _log.error("class %s of nodes: %s", name, problem)
        return self._known

    def _look(self) -> object:
        try:
            found = [(p.name, p.stat()) for p in _class_files(self._folder)]
        except OSError as error:
            return str(error)
        return [(name, s.st_ino, s.st_size, s.st_mtime_ns) for name, s in found]


def read_classes(folder: Path) -> Classes:
    """Classes of all files of a directory, with the problems of the files that are not valid."""

    def content(path: Path) -> bytes | OSError:
        try:
            return path.read_bytes()
        except OSError as error:
            return error

    try:
        files = _class_files(folder)
    except OSError as error:
        return Classes({}, {}, {"default": f"{folder}: {error.strerror or error}"})
    return read_files((path.name, content(path)) for path in files)


def _class_files(folder: Path) -> list[Path]:
    return sorted(
        p
        for p in folder.iterdir()
        if p.suffix in SUFFIXES and not p.name.startswith(".") and p.is_file()
    )
