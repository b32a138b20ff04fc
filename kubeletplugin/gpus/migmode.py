"""Changes of MIG mode, made only where the administrator opted in and nobody uses the GPU.

From Hopper on a change of MIG mode needs no GPU reset, and the mode is lost whenever the driver is
unloaded, so at each boot. Before Hopper a change needs a reset, and the mode stays in the GPU: on
those GPUs this program never changes it.

A change is refused, or stays pending, while another client has the GPU open, also from Hopper on
(NVIDIA's DRA driver, nvlib.go, maybeDisableMigMode: "activationStatus may reflect 'in use by
another client'"). The caller "is expected to idle the device and retry" (nvml.h,
nvmlDeviceSetMigMode): the change is tried again, with growing pauses, as long as it is wanted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import pynvml

from dra.claims.reasons import NodeReason
from dra.gpu.inventory import GpuReason
from dra.kube.timing import Backoff
from kubeletplugin import times
from kubeletplugin.common import Common
from kubeletplugin.gpus.gpu import GpuUnit, ModeChange
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.host.processes import has_monitor, openers
from kubeletplugin.nvml.errors import (
    RELEASE_DCGM,
    SEE_PROCESSES,
    NvmlError,
    code_name,
    disable_mig,
    enable_mig,
)
from kubeletplugin.nvml.gpus import mig_mode
from kubeletplugin.nvml.instances import list_gpu_instances, processes

_log = logging.getLogger(__name__)


class MigMode:
    """Turns MIG mode on or off. To be used by the thread that looks at the hardware."""

    def __init__(self, common: Common, hardware: Hardware) -> None:
        self._hardware = hardware
        self._session = hardware.session
        self._journal = common.journal
        self._roots = common.options.roots
        self._reports = common.reports
        self._clock = common.clock

    def settle(self, wanted: Callable[[GpuUnit], bool | None]) -> None:
        """Turn MIG mode on or off on each GPU where that is wanted and permitted.

        ``wanted``: returns True for on, False for off, None to leave a GPU as it is. All GPUs are
        discovered anew if any was changed.

        Raises:
            NvmlError: the driver cannot be asked after a change.
            HostError: the file with the GPUs' names cannot be written.
        """
        changed = False
        for unit in self._hardware.units():
            mode = wanted(unit)
            if mode is None or unit.card.mig_enabled == mode:
                unit.mode_change = None
                continue
            change = unit.mode_change
            if change is None or change.enable != mode:
                first, longest = times.MODE_FIRST_SECONDS, times.MODE_LONGEST_SECONDS
                again = Backoff(first=first, limit=longest, jitter=0.0)
                change = unit.mode_change = ModeChange(mode, again)
            if unit.released or change.again.left(self._clock.monotonic()):
                continue
            with unit.lock.if_free() as free:
                try:
                    changed = (free and self._gpu(unit, change)) or changed
                except NvmlError as error:
                    _log.error("MIG mode of %s: %s", unit.name, error)
        if changed:
            # Minor numbers may be others now.
            self._hardware.discover()

    def _has_contexts(self, unit: GpuUnit) -> bool:
        session, gpu = self._session, unit.uuid
        device, graphics = session.device(gpu), pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3
        return bool(session.call(graphics, device, gpu=gpu) or processes(session, gpu))

    def _gpu(self, unit: GpuUnit, change: ModeChange) -> bool:
        """Try a change once; returns True if it was tried, so that the GPU may have changed."""
        session, gpu, enable = self._session, unit.uuid, change.enable
        device = session.device(gpu)
        now = mig_mode(session, gpu)
        if now is None or now[0] == enable or not self._is_permitted(unit, change):
            return False
        change.again.fail(self._clock.monotonic())
        word = "on" if enable else "off"
        _log.info("turning %s MIG mode of %s (%s)", word, unit.name, gpu)
        mode = pynvml.NVML_DEVICE_MIG_ENABLE if enable else pynvml.NVML_DEVICE_MIG_DISABLE
        try:
            status = session.call(pynvml.nvmlDeviceSetMigMode, device, mode, gpu=gpu)
            answer = f"activation status {code_name(status)} ({status})"
            # Success of the call says nothing: the mode may be waiting for a reset.
            done = mig_mode(session, gpu) == (enable, enable)
        except NvmlError as error:
            answer, done = str(error), False
        if done:
            reason = NodeReason.MIG_ENABLED if enable else NodeReason.MIG_DISABLED
            self._reports.report_node(reason, f"MIG mode of {unit.name} ({gpu}) turned {word}")
        else:
            text = (
                f"MIG mode of {unit.name} ({gpu}) was asked to be {word} and is not ({answer}); "
                f"{self._holders(unit)}; it is tried again, with growing pauses; else "
                f"{self._by_hand(unit, enable=enable)}"
            )
            self._say(change, NodeReason.MIG_PENDING, text)
        return True

    def _by_hand(self, unit: GpuUnit, *, enable: bool) -> str:
        node = self._reports.node_name
        if enable:
            return enable_mig(unit.uuid, node=node, gpu=unit.name)
        switches = unit.card.switches_mig
        return disable_mig(unit.uuid, node=node, gpu=unit.name, switches=switches)

    def _holders(self, unit: GpuUnit) -> str:
        """Text about the programs that have the GPU open, from /proc and from NVML."""
        found = openers(self._roots, unit.card.minor)
        try:
            pids = processes(self._session, unit.uuid)
        except NvmlError:
            pids = ()
        unseen = [f"process {pid}" for pid in pids if not any(f"({pid})" in o for o in found)]
        if not found and not unseen:
            return "no program is seen that has the GPU open"
        words = f"it is open in {', '.join([*found, *unseen])}"
        return f"{words}; {RELEASE_DCGM}" if has_monitor(found) else words

    def _is_permitted(self, unit: GpuUnit, change: ModeChange) -> bool:
        gpu, enable, card = unit.uuid, change.enable, unit.card
        reason, words = unit.problem
        broken = words and reason != GpuReason.MIG_PENDING
        if not card.mig_capable or broken or unit.conflict is not None:
            return False
        held = self._journal.of_gpu(gpu)
        if any(e.placement is None for e in held) or (held and not enable):
            return False  # given to a claim as a whole, or slices of it
        if not enable and card.geometry and list_gpu_instances(self._session, gpu, card.geometry):
            return False  # somebody's
        if not card.switches_mig:
            return False
        if not self._session.names_processes:
            # NVML may hide processes here: an empty list does not prove that the GPU is idle.
            text = (
                f"MIG mode of {unit.name} ({gpu}) is left {'off' if enable else 'on'}: it cannot "
                "be told whether processes use the GPU; "
                f"{SEE_PROCESSES}, or {self._by_hand(unit, enable=enable)}"
            )
            self._say(change, NodeReason.MIG_LEFT_OFF, text)
            return False
        return not self._has_contexts(unit)

    def _say(self, change: ModeChange, reason: NodeReason, text: str) -> None:
        if change.told != text:
            change.told = text
            _log.warning("%s", text)
            self._reports.report_node(reason, text, warning=True)
