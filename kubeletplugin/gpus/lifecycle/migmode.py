"""MIG mode, turned on only where the administrator opted in and nothing is disturbed.

From Hopper on the mode is lost with the driver, so at each boot, and needs no GPU reset. Before
Hopper it needs one, and stays in the GPU: there it is never changed.
"""

from __future__ import annotations

import logging

import pynvml

from dra.claims.reasons import NodeReason
from kubeletplugin.gpus.gpuunit import GpuUnit
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.journal.journal import Journal
from kubeletplugin.nvml.discovery import mig_mode
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.nvml.instances import processes
from kubeletplugin.nvml.remedies import SEE_PROCESSES, enable_mig, reset
from kubeletplugin.telemetry.reports import Reports

_log = logging.getLogger(__name__)


class MigMode:
    """Turns MIG mode on, at most once per GPU until it has been seen on."""

    def __init__(self, hardware: Hardware, journal: Journal, *, reports: Reports) -> None:
        self._hardware = hardware
        self._journal = journal
        self._reports = reports
        self._tried: set[str] = set()
        self._unseen: set[str] = set()

    def enable(self) -> None:
        """Turn it on where that is permitted; GPUs are looked at anew if any was changed.

        Raises:
            NvmlError: the driver cannot be asked after that.
            HostError: names cannot be kept.
        """
        changed = False
        for unit in self._hardware.units():
            if unit.known.card.mig_enabled:
                self._tried.discard(unit.uuid)
            elif not unit.known.let_go and unit.uuid not in self._tried and unit.lock.try_enter():
                try:
                    changed = self._gpu(unit) or changed
                except NvmlError as error:
                    _log.error("MIG mode of %s: %s", unit.name, error)
                finally:
                    unit.lock.leave()
        if changed:
            # Minor numbers may be others now.
            self._hardware.discover()

    def _gpu(self, unit: GpuUnit) -> bool:
        session, gpu = self._hardware.session, unit.uuid
        device = session.device(gpu)
        if not self._is_permitted(unit) or mig_mode(session, device, gpu=gpu) != (False, False):
            return False
        self._tried.add(gpu)
        _log.info("turning on MIG mode of %s (%s)", unit.name, gpu)
        status = session.call(
            pynvml.nvmlDeviceSetMigMode, device, pynvml.NVML_DEVICE_MIG_ENABLE, gpu=gpu
        )
        # Success of the call says nothing: the mode may be waiting for a reset.
        if mig_mode(session, session.device(gpu), gpu=gpu) == (True, True):
            self._reports.report_node(
                NodeReason.MIG_ENABLED, f"MIG mode of {unit.name} ({gpu}) turned on"
            )
        else:
            self._reports.report_node(
                NodeReason.MIG_PENDING,
                f"MIG mode of {unit.name} ({gpu}) was asked for and is not on "
                f"(activation status {status}); "
                f"{reset(gpu, node=self._reports.node_name, gpu=unit.name)}",
                warning=True,
            )
        return True

    def _is_permitted(self, unit: GpuUnit) -> bool:
        session, gpu = self._hardware.session, unit.uuid
        known = unit.known
        if not known.card.mig_capable or known.card.problem or known.withheld is not None:
            return False
        if any(e.placement is None for e in self._journal.of_gpu(gpu)):
            return False  # given to a claim as a whole
        device = session.device(gpu)
        architecture = session.call(pynvml.nvmlDeviceGetArchitecture, device, gpu=gpu)
        if (
            architecture < pynvml.NVML_DEVICE_ARCH_HOPPER
            or architecture == pynvml.NVML_DEVICE_ARCH_UNKNOWN
        ):
            return False
        if not session.names_processes:
            self._say_unseen(unit)
            return False
        graphics = session.call(pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3, device, gpu=gpu)
        return not graphics and not processes(session, gpu)

    def _say_unseen(self, unit: GpuUnit) -> None:
        """An empty list of processes is no proof that a GPU is idle."""
        if unit.uuid in self._unseen:
            return
        self._unseen.add(unit.uuid)
        text = (
            f"MIG mode of {unit.name} ({unit.uuid}) is left off: it cannot be told whether "
            f"processes use the GPU; {SEE_PROCESSES}, or {enable_mig(unit.uuid, gpu=unit.name)}"
        )
        _log.warning("%s", text)
        self._reports.report_node(NodeReason.MIG_LEFT_OFF, text, warning=True)
