"""Takeover of a node from another manager of its GPUs while pods go on, and the way back.

An administrator's wish is in the MigNode. An instance of others is removed if kubelet gives it to
no pod and no process is in it, in each look for some time. Nothing is removed while that cannot be
known: kubelet or the API server does not answer, the other manager may still give GPUs out, or a
pod runs that kubelet does not list. Every step can be interrupted, as nothing is remembered of it:
the next look judges by what is there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from api.mignode import KeptInstance
from dra.claims.reasons import NodeReason
from dra.gpu.geometry import Profile
from dra.gpu.inventory import InstanceState, TakeoverProgress
from dra.gpu.inventory import Takeover as Wish
from dra.gpu.names import gpu_name, mig_device
from kubeletplugin import times
from kubeletplugin.claims.slices import Slices
from kubeletplugin.common import Common
from kubeletplugin.errors import PluginError
from kubeletplugin.gpus.gpu import Conflict, GpuUnit
from kubeletplugin.gpus.others import OtherUses, is_of_gpus, other_uses
from kubeletplugin.host.podresources import (
    PodDevices,
    PodResources,
    checkpointed_devices,
    unlisted_pods,
)
from kubeletplugin.nvml.errors import InUseError, NvmlError
from kubeletplugin.nvml.instances import (
    GpuInstance,
    create_compute_instance,
    create_gpu_instance,
    destroy_compute_instances,
    destroy_gpu_instance,
    list_compute_instances,
    processes,
)
from kubeletplugin.publishing.mignode import Wishes

_log = logging.getLogger(__name__)
_TAKING = Conflict(
    NodeReason.TAKEOVER,
    "the node is taken over, and another manager may still give its GPUs out, or pods have them of "
    "that manager (kubectl mig takeover --status)",
    passing=True,
)
_RETURNED = Conflict(NodeReason.HANDED_BACK, "the node is handed back to another manager")
_PENDING, _SUCCESS = "pending", "success"
_UNUSED = "nobody has it so far; it is looked at again"


class _Found(NamedTuple):
    """An instance of others. ``uuids``: of the MIG devices in it."""

    gpu: str
    gi: GpuInstance
    uuids: tuple[str, ...]


class Takeover:
    """Carries out the wish, a look at a time, in the janitor's thread.

    ``wishes``: returns what the MigNode says. ``other_manager``: asks if another manager may still
    give GPUs out, given the keys of labels that keep it off the node; returns the reason, or empty.
    :attr:`progress`: for the MigNode.
    """

    def __init__(
        self,
        common: Common,
        slices: Slices,
        kubelet: PodResources,
        *,
        wishes: Callable[[], Wishes],
        other_manager: Callable[[Iterable[str]], str],
    ) -> None:
        self._roots, self._driver = common.options.roots, common.options.driver_name
        self._journal, self._reports, self._clock = common.journal, common.reports, common.clock
        self._on_change = common.changed
        self._slices, self._hardware = slices, slices.hardware
        self._kubelet = kubelet
        self._wishes, self._other_manager = wishes, other_manager
        self._held: tuple[Conflict | None, frozenset[str]] = (None, frozenset())
        self._seen: Wish | None = None
        self._free: dict[_Found, float] = {}
        self._before = self._free
        self.progress: TakeoverProgress | None = None

    def begin(self) -> None:
        """Offer nothing of a node with a wish before it was looked at; for a start."""
        wish, self.progress = self._wishes().takeover, self._wishes().progress
        if wish is not None and (wish.is_return or not self._is_over(wish)):
            self._hold(_RETURNED if wish.is_return else _TAKING)

    def leaves(self) -> bool:
        """True if nothing is to be kept on the node's GPUs, as they are handed back."""
        wish = self._wishes().takeover
        return wish is not None and wish.is_return

    def tend(self, *, is_due: bool) -> None:
        """Do one look, if it is due or the wish has changed. Never raises PluginError."""
        wish = self._wishes().takeover
        if wish == self._seen and not is_due:
            return
        self._seen = wish
        is_over = wish is None or self._is_over(wish)
        is_return = wish is not None and wish.is_return
        if is_over or is_return:
            self._hold(_RETURNED if is_return else None)
        self._look(None if is_over or is_return else wish)
        if wish is None:
            self.progress = None
        elif is_return and not is_over:
            self._return(wish)

    def _is_over(self, wish: Wish) -> bool:
        """True if a wish is fulfilled: what others make from then on is left alone."""
        told = {self.progress, self._wishes().progress}
        return any(p is not None and (p.since, p.state) == (wish.since, _SUCCESS) for p in told)

    def _hold(self, conflict: Conflict | None, held: frozenset[str] = frozenset()) -> None:
        """Give nothing new out: on the node, or on the GPUs of ``held``, which pods have whole."""
        if (conflict, held) != self._held:
            self._held = conflict, held
            for unit in self._hardware.units():
                unit.held = _TAKING if unit.uuid in held else None
            self._hardware.set_conflict(conflict, source="takeover")

    def _tell(self, wish: Wish, left: list[str], *, why: str = "", done: str) -> None:
        """Tell what is ``left``, or ``why`` nothing goes on; if it is neither, the wish is over."""
        state = _PENDING if why or left else _SUCCESS
        message = why or (f"{len(left)} left: {'; '.join(left)}" if left else done)
        told = TakeoverProgress(wish.since, state, message)
        before, self.progress = self.progress, told
        if told == before:
            return
        _log.info("%s: %s: %s", wish.wish, state, message)
        self._on_change()
        if state == _SUCCESS:
            reason = NodeReason.HANDED_BACK if wish.is_return else NodeReason.TAKEN_OVER
            self._reports.report_node(reason, message)

    # -- taken over

    def _look(self, wish: Wish | None) -> None:
        """Publish who has instances of others; with a wish, remove those that nobody has."""
        seen = (i.state for gpu in self._hardware.gpus() for i in gpu.instances)
        self._before, self._free = self._free, {}
        if wish is None and InstanceState.FOREIGN not in seen:
            return
        why = ""
        try:
            pods = self._kubelet.pods()
            uses = other_uses(*pods, *checkpointed_devices(self._roots), driver=self._driver)
            if wish is not None:
                keys = [label.key for label in wish.labels]
                why = self._other_manager(keys) or next(self._doubts(pods, uses), "")
            units, takes = self._hardware.units(), wish is not None and not why
            left = [t for unit in units for t in self._of_gpu(unit, uses, takes=takes)]
            left += self._hardware.problems
            held = frozenset(u.uuid for u in units if uses.of(*_names(u)))
        except PluginError as error:
            why, left, held = str(error), [], frozenset()
        if wish is not None:
            self._hold(_TAKING if why else None, held)
            why = why and f"nothing is taken yet: {why}"
            self._tell(wish, left, why=why, done="no instance of others is left")

    def _doubts(self, pods: tuple[PodDevices, ...], uses: OtherUses) -> Iterator[str]:
        """Reasons why it is not known who has the node's GPUs."""
        if not self._hardware.session.names_processes:
            yield "this plugin cannot see the node's processes (hostPID)"
        if self._journal.rebuild or self._journal.unadopted:
            yield "the journal was lost, and this driver's own instances are not all known yet"
        if not self._hardware.units():
            yield "no GPU is seen"
        if not pods:
            yield "kubelet lists no pod, not even this plugin's"
        if hidden := unlisted_pods(self._roots, pods):
            yield f"pod {', '.join(hidden)} runs here, and kubelet does not list it"
        if offered := sorted(d for d in self._kubelet.offered() if is_of_gpus(*d)):
            yield f"a device plugin still gives out {offered[0][0]}, as kubelet says"
        if unclear := uses.unclear():
            yield f"{unclear} may have any GPU or slice of the node"

    def _of_gpu(self, unit: GpuUnit, uses: OtherUses, *, takes: bool) -> Iterator[str]:
        """Remove what may go of a GPU, if it ``takes``; texts on what stays, and who has it."""
        if users := uses.of(*_names(unit)):
            yield f"{unit.name} whole: {users}"
        if unit.released:
            yield f"{unit.name}: {unit.released}"
        if unit.released or not unit.card.mig_enabled:
            return
        if not unit.lock.enter(times.LOOK_SECONDS):
            yield f"{unit.name} is worked on"
            return
        session, now = self._hardware.session, self._clock.monotonic()
        told: dict[int, tuple[str, str]] = {}
        try:
            for gi in self._slices.foreign(unit):
                inside = list_compute_instances(session, unit.uuid, gi.id)
                found = _Found(unit.uuid, gi, tuple(sorted(c.uuid for c in inside)))
                why = self._why_kept(found, unit, uses)
                told[gi.id] = (found.uuids[0] if len(inside) == 1 else "", why)
                if not why and takes:
                    since = self._free[found] = self._before.get(found, now)
                    is_new = now - since < times.TAKEOVER_PAUSE_SECONDS
                    why = _UNUSED if is_new else self._remove(found, unit)
                if why:
                    yield f"{unit.name} {_shape(unit, gi)}: {why}"
        except (NvmlError, PluginError) as error:
            yield f"{unit.name}: {error}"
        finally:
            unit.lock.leave()
        if told != unit.foreign:
            unit.foreign = told
            self._hardware.show_again(unit)

    def _why_kept(self, found: _Found, unit: GpuUnit, uses: OtherUses) -> str:
        """Reason why an instance has to stay; empty if there is none."""
        gi = found.gi
        for entry in self._journal.of_gpu(unit.uuid):
            if entry.placement is None or entry.placement.overlaps(gi.placement):
                return f"its place is kept for {entry.holder()}"
        if users := uses.of(*found.uuids, *_names(unit, gi), *_names(unit)) or unit.unwell:
            return users
        if pids := processes(self._hardware.session, unit.uuid, gi.id):
            text = f"process {', '.join(map(str, pids))} is in it, and kubelet gives it to no pod"
            return text + self._slices.holders(unit.uuid, pids)
        return ""

    def _remove(self, found: _Found, unit: GpuUnit) -> str:
        """Destroy an instance; the reason if it stays, or is left without compute instances."""
        session, gpu, gi = self._hardware.session, found.gpu, found.gi
        try:
            destroy_compute_instances(session, gpu, gi.id)
            destroy_gpu_instance(session, gpu, gi.id)
        except NvmlError as error:
            pids = error.pids if isinstance(error, InUseError) else ()
            return f"{error}{self._slices.holders(gpu, pids)}"
        finally:
            self._hardware.look_soon(gpu)
        text = f"{unit.name} {_shape(unit, gi)} {next(iter(found.uuids), '')}"
        text += ": no pod had it, no process was in it"
        self._reports.report_node(NodeReason.INSTANCE_REMOVED, text)
        return ""

    # -- handed back

    def _return(self, wish: Wish) -> None:
        # A Prepare that began before the GPUs were withdrawn has a lock, and then an entry.
        busy = [f"{u.name} is worked on" for u in self._hardware.units() if u.lock.is_worked_under]
        left = [*busy, *(entry.holder() for entry in self._journal.entries())]
        if wish.restore and not left:
            why = self._other_manager([label.key for label in wish.labels])
            tried = [why] if why else map(self._restore, wish.instances)
            left = [f"not made again: {text}" for text in tried if text]
        self._tell(wish, left, done="nothing of this driver is left on the node")

    def _restore(self, kept: KeptInstance) -> str:
        """Make what is missing of an instance with a compute instance, and leave it to others.

        Returns the reason why it cannot be made, or empty.
        """
        session, unit = self._hardware.session, self._hardware.unit(kept.gpu)
        if unit is None or unit.released or not unit.lock.enter(times.LOOK_SECONDS):
            return f"GPU {kept.gpu} is not at hand"
        profile, shape = _profile(unit, kept), (kept.profile_id, kept.placement)
        try:
            if profile is None:
                return f"{unit.name} has no profile {kept.profile_id}"
            there = (g for g in self._slices.foreign(unit) if (g.profile_id, g.placement) == shape)
            gi = next(there, None) or create_gpu_instance(
                session, unit.uuid, profile=profile, placement=kept.placement
            )
            if not list_compute_instances(session, unit.uuid, gi.id):
                create_compute_instance(session, unit.uuid, gi_id=gi.id, profile=profile)
        except (NvmlError, PluginError) as error:
            return f"{unit.name} {_shape(unit, kept)}: {error}"
        finally:
            unit.lock.leave()
            self._hardware.look_soon(unit.uuid)
        return ""


def _names(unit: GpuUnit, gi: GpuInstance | None = None) -> tuple[str, ...]:
    """Names of a GPU, or of an instance on it, as others have them in ids."""
    if gi is None:
        return unit.uuid, gpu_name(unit.card.minor)
    profile, start = _profile(unit, gi), gi.placement.start
    name = profile.name if profile else ""
    return (str(mig_device(unit.card.minor, name, profile_id=gi.profile_id, start=start)),)


def _profile(unit: GpuUnit, at: GpuInstance | KeptInstance) -> Profile | None:
    return unit.card.geometry.by_id(at.profile_id) if unit.card.geometry else None


def _shape(unit: GpuUnit, at: GpuInstance | KeptInstance) -> str:
    found = _profile(unit, at)
    return f"{found.name if found else f'profile {at.profile_id}'} at {at.placement}"
