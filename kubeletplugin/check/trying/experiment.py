"""Slices of every profile of a GPU, made and removed twice, to see what the driver really does.

Each slice is on record before it is made and is removed before the next one, whatever happens
between. A person may stop it at any time: it ends at the next step, with nothing left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from dra.gpu.geometry import Placement
from kubeletplugin.check.errors import CheckError, StoppedError
from kubeletplugin.check.report import Gpu, Profile, Trial
from kubeletplugin.check.trying.configevents import ConfigEvents
from kubeletplugin.check.trying.leftovers import Record, RecordFile, advice, remove
from kubeletplugin.check.trying.slices import SUCCESS, Slices, best
from kubeletplugin.check.trying.tools import Place, Tools
from kubeletplugin.check.trying.witnesses import Descriptor, Directory, folder_of
from kubeletplugin.host.roots import Roots
from kubeletplugin.nvml.codes import code_name
from kubeletplugin.nvml.errors import HangError, NvmlError
from kubeletplugin.nvml.instances import GpuInstance
from kubeletplugin.nvml.session.session import Session

ROUNDS = 2


@dataclass(slots=True)
class Observations:
    """Facts observed. Words are empty where nothing was tried; codes are NVML's names."""

    trials: list[Trial] = field(default_factory=list)
    taken: str = ""
    busy: str = ""
    processes: str = ""
    in_use: str = ""
    descriptor: str = ""
    directory: str = ""
    config_events: str = ""
    lingered: int = 0


class Experiment:
    """The trials on one idle GPU; ``stop`` ends them at the next step."""

    def __init__(  # noqa: PLR0913 - what it works with
        self,
        session: Session,
        gpu: Gpu,
        *,
        roots: Roots,
        tools: Tools,
        stop: threading.Event,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._session = session
        self._gpu = gpu
        self._roots = roots
        self._tools = tools
        self._stop = stop
        self._say = say
        self._file = RecordFile(roots.state)
        self._slices = Slices(session, gpu)
        self._seen = Observations()

    def run(self) -> Observations:
        """Try every profile that can be placed.

        Raises:
            StoppedError: somebody asked to end; nothing is left.
            CheckError: a slice could not be removed; says how to.
        """
        for number in range(1, ROUNDS + 1):
            for profile in self._gpu.profiles:
                if profile.placements:
                    self._say(f"round {number} of {ROUNDS}: {profile.name}")
                    self._slice(profile, number)
        return self._seen

    def _slice(self, profile: Profile, number: int) -> None:
        self._still_wanted()
        start, size = profile.placements[0]
        trial = Trial(
            profile=profile.name,
            start=start,
            size=size,
            round=number,
            advertised_multiprocessors=profile.multiprocessors,
            advertised_memory_mib=profile.memory_mib,
        )
        record = Record(
            gpu=self._gpu.uuid,
            boot_id=self._roots.boot_id(),
            profile_id=profile.id,
            profile=profile.name,
            start=start,
            size=size,
        )
        self._file.write(record)
        try:
            self._made(profile, trial)
        finally:
            self._remove(record)

    def _made(self, profile: Profile, trial: Trial) -> None:
        try:
            gi = self._slices.create(profile, Placement(trial.start, trial.size))
            trial = replace(trial, gpu_instance_id=gi.id)
            offers = self._slices.candidates(gi, profile)
            if trial.round > 1:
                wanted = best(self._seen.trials, profile.name)
                offers = [o for o in offers if o.enum == wanted]
            for offer in offers:
                self._still_wanted()
                filled = self._slices.fill(gi, offer, trial)
                self._seen.trials.append(filled)
                if not filled.refused:
                    self._look_once(gi, filled)
                    self._slices.empty(gi)
        except HangError as error:
            raise CheckError(str(error)) from error
        except NvmlError as error:
            self._seen.trials.append(replace(trial, refused=code_name(error.code)))

    def _look_once(self, gi: GpuInstance, trial: Trial) -> None:
        """Observe what one slice tells for all; ends without the compute instance."""
        seen = self._seen
        if seen.taken:
            return
        seen.taken = self._slices.code_of_taken(gi)
        seen.busy = self._slices.code_of_busy(gi)
        if seen.busy == SUCCESS:
            return
        ci_id = trial.compute_instance_id
        place = Place(self._gpu.uuid, self._gpu.minor, gi.id, ci_id, trial.uuid)
        folder = folder_of(self._roots, self._gpu, gi_id=gi.id, ci_id=ci_id)
        descriptor, directory = Descriptor(folder), Directory(folder)
        events = ConfigEvents(self._session, self._gpu.uuid)
        try:
            with self._tools.hold(place) as pid:
                seen.processes = self._slices.names(gi, pid)
                seen.in_use = self._slices.empty(gi)
        except CheckError as error:
            seen.processes = f"open: {error}"
        self._slices.empty(gi)
        seen.descriptor, seen.directory = descriptor.read(), directory.tell()
        seen.config_events = events.refusal or ("delivered" if events.came() else "not delivered")
        events.close()

    def _remove(self, record: Record) -> None:
        try:
            self._seen.lingered = max(self._seen.lingered, remove(self._session, record) or 0)
        except NvmlError as error:
            raise CheckError(advice(record, error)) from error
        self._file.remove()

    def _still_wanted(self) -> None:
        if self._stop.is_set():
            raise StoppedError("stopped; nothing is left on the GPU")
