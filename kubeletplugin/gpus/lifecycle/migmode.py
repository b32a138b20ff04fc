"""MIG mode, turned on or off only where the administrator opted in and nothing is disturbed.

From Hopper on the mode is lost with the driver, so at each boot, and needs no GPU reset. Before
Hopper it needs one, and stays in the GPU: there it is never changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import pynvml

from dra.claims.reasons import NodeReason
from kubeletplugin.gpus.gpuunit import GpuUnit
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.journal.journal import Journal
from kubeletplugin.nvml.discovery import mig_mode
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.nvml.instances import list_gpu_instances, processes
from kubeletplugin.nvml.remedies import SEE_PROCESSES, disable_mig, enable_mig, reset
from kubeletplugin.telemetry.reports import Reports

_log = logging.getLogger(__name__)


class MigMode:
    """Turns MIG mode on or off, once per GPU until it has been seen so, or is wanted otherwise."""

    def __init__(self, hardware: Hardware, journal: Journal, *, reports: Reports) -> None:
        self._hardware = hardware
        self._journal = journal
        self._reports = reports
        self._tried: dict[str, bool] = {}
        self._unseen: set[str] = set()

    def settle(self, wanted: Callable[[GpuUnit], bool | None]) -> None:
        """Turn it on or off where that is ``wanted`` and permitted, None being neither.

        GPUs are looked at anew if any was changed.

        Raises:
            NvmlError: the driver cannot be asked after that.
            HostError: names cannot be kept.
        """
        changed = False
        for unit in self._hardware.units():
            mode = wanted(unit)
            if mode is None or unit.known.card.mig_enabled == mode:
                self._tried.pop(unit.uuid, None)
            elif unit.known.let_go or self._tried.get(unit.uuid) == mode:
                continue
            elif unit.lock.try_enter():
                try:
                    changed = self._gpu(unit, enable=mode) or changed
                except NvmlError as error:
                    _log.error("MIG mode of %s: %s", unit.name, error)
                finally:
                    unit.lock.leave()
        if changed:
            # Minor numbers may be others now.
            self._hardware.discover()

    def _gpu(self, unit: GpuUnit, *, enable: bool) -> bool:
        session, gpu = self._hardware.session, unit.uuid
        device = session.device(gpu)
        now = mig_mode(session, device, gpu=gpu)
        if now != (not enable, not enable) or not self._is_permitted(unit, enable=enable):
            return False
        self._tried[gpu] = enable
        word = "on" if enable else "off"
        _log.info("turning %s MIG mode of %s (%s)", word, unit.name, gpu)
        mode = pynvml.NVML_DEVICE_MIG_ENABLE if enable else pynvml.NVML_DEVICE_MIG_DISABLE
        status = session.call(pynvml.nvmlDeviceSetMigMode, device, mode, gpu=gpu)
        # Success of the call says nothing: the mode may be waiting for a reset.
        if mig_mode(session, session.device(gpu), gpu=gpu) == (enable, enable):
            self._reports.report_node(
                NodeReason.MIG_ENABLED if enable else NodeReason.MIG_DISABLED,
                f"MIG mode of {unit.name} ({gpu}) turned {word}",
            )
        else:
            self._reports.report_node(
                NodeReason.MIG_PENDING,
                f"MIG mode of {unit.name} ({gpu}) was asked to be {word} and is not "
                f"(activation status {status}); "
                f"{reset(gpu, node=self._reports.node_name, gpu=unit.name)}",
                warning=True,
            )
        return True

    def _is_permitted(self, unit: GpuUnit, *, enable: bool) -> bool:
        session, gpu = self._hardware.session, unit.uuid
        known = unit.known
        if not known.card.mig_capable or known.card.problem or known.withheld is not None:
            return False
        held = self._journal.of_gpu(gpu)
        if any(e.placement is None for e in held) or (held and not enable):
            return False  # given to a claim as a whole, or slices of it
        geometry = known.card.geometry
        if not enable and geometry and list_gpu_instances(session, gpu, geometry):
            return False  # somebody's
        if not known.card.switches_mig:
            return False
        device = session.device(gpu)
        if not session.names_processes:
            self._say_unseen(unit, enable=enable)
            return False
        graphics = session.call(pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3, device, gpu=gpu)
        return not graphics and not processes(session, gpu)

    def _say_unseen(self, unit: GpuUnit, *, enable: bool) -> None:
        """An empty list of processes is no proof that a GPU is idle."""
        if unit.uuid in self._unseen:
            return
        self._unseen.add(unit.uuid)
        remedy = enable_mig if enable else disable_mig
        text = (
            f"MIG mode of {unit.name} ({unit.uuid}) is left {'off' if enable else 'on'}: it cannot "
            "be told whether processes use the GPU; "
            f"{SEE_PROCESSES}, or {remedy(unit.uuid, gpu=unit.name)}"
        )
        _log.warning("%s", text)
        self._reports.report_node(NodeReason.MIG_LEFT_OFF, text, warning=True)
