"""``check --create``: makes and removes one slice of each profile of an idle GPU, twice.

Each slice is on record before it is made (``check.json`` in the plugin's state directory) and is
removed before the next one, by the functions that the plugin itself uses. What a check that was
killed has left, the next one removes.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec
from msgspec.structs import replace

from cdi.files import write_durably
from dra.gpu import geometry
from dra.gpu.geometry import Placement
from kubeletplugin.check.gpus import read_gpu
from kubeletplugin.check.report import Gpu, Profile, Report, Trial
from kubeletplugin.host.roots import Roots
from kubeletplugin.journal.journal import owned_at_once
from kubeletplugin.journal.journalfile import decode
from kubeletplugin.nvml.errors import HangError, InUseError, NvmlError, node_name
from kubeletplugin.nvml.instances import (
    GpuInstance,
    create_compute_instance,
    create_gpu_instance,
    destroy_compute_instances,
    destroy_gpu_instance,
    list_gpu_instances,
)
from kubeletplugin.nvml.session import Session

ROUNDS = 2
_ATTEMPTS = 20
_PAUSE_SECONDS = 0.25


class Refused(click.ClickException):
    """Ends the check; the text says why, and what to do."""


class Record(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A GPU instance that a check may have made; ``gi_id`` is -1 until its creation came back."""

    gpu: str
    boot_id: str
    profile_id: int
    profile: str
    start: int
    size: int
    gi_id: int = -1

    def __str__(self) -> str:
        """The slice in words."""
        return f"{self.profile} at {self.start}:{self.size} of GPU {self.gpu}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Means of ``--create``.

    ``has_released`` is true if the plugin that runs has no GPU open; ``ask`` puts a question to a
    person; ``say`` tells how far it is.
    """

    session: Session
    roots: Roots
    has_released: Callable[[], bool]
    ask: Callable[[str], bool]
    say: Callable[[str], None]

    @property
    def record(self) -> Path:
        """The file with the slice that is being tried."""
        return self.roots.state / "check.json"


def create(report: Report, name: str, around: Surroundings) -> Report:
    """Make and remove slices on the GPU called ``name``; the report with what came of each.

    Raises:
        Refused: it may not be done, or was stopped; nothing is left, or the text says what is.
        NvmlError: the GPU cannot be asked.
    """
    gpu = _named(report, name, around.roots.state)
    with _alone(around), _stoppable() as stop:
        _remove_left(around)
        gpu = read_gpu(around.session, gpu.index)  # as it is now that no plugin can begin
        for refusal in _refusals(gpu, around.roots.state):
            raise Refused(f"--create: GPU {gpu.uuid} {refusal}")
        profiles = [p for p in gpu.profiles if p.placements]
        _require(
            around,
            f"GPU {gpu.uuid} ({gpu.product}) is idle. Make and remove one slice of each of its "
            f"{len(profiles)} profiles, {ROUNDS} times? Nothing else is changed",
        )
        trials = []
        for number in range(1, ROUNDS + 1):
            for profile in profiles:
                if stop.is_set():
                    raise Refused("stopped; nothing is left on the GPU")
                around.say(f"round {number} of {ROUNDS}: {profile.name}")
                trials.append(_try(around, gpu, profile, number))
    return replace(report, trials=tuple(trials))


def _try(around: Surroundings, gpu: Gpu, profile: Profile, number: int) -> Trial:
    start, size = profile.placements[0]
    trial = Trial(profile=profile.name, start=start, size=size, round=number)
    record = Record(
        gpu=gpu.uuid,
        boot_id=around.roots.boot_id(),
        profile_id=profile.id,
        profile=profile.name,
        start=start,
        size=size,
    )
    shape = geometry.Profile(
        profile.id,
        profile.name,
        profile.slices,
        profile.memory_mib,
        profile.multiprocessors,
        (Placement(start, size),),
    )
    _write(around.record, record)
    try:
        gi = create_gpu_instance(
            around.session, gpu.uuid, profile=shape, placement=shape.placements[0]
        )
        record, trial = replace(record, gi_id=gi.id), replace(trial, gpu_instance_id=gi.id)
        _write(around.record, record)
        made = create_compute_instance(around.session, gpu.uuid, gi_id=gi.id, profile=shape)
        trial = replace(
            trial,
            uuid=made.uuid,
            multiprocessors=made.multiprocessors,
            memory_mib=made.memory_mib,
        )
    except HangError as error:  # it may yet make something: the record stays
        raise _may_be_left(record, error) from error
    except NvmlError as error:
        trial = replace(trial, refused=str(error))
    _remove(around, record)
    return trial


def _remove_left(around: Surroundings) -> None:
    """Remove what a check that was killed has left, if a person agrees."""
    try:
        record = msgspec.json.decode(around.record.read_bytes(), type=Record)
    except FileNotFoundError:
        return
    except (OSError, msgspec.MsgspecError) as error:
        raise Refused(
            f"{around.record} cannot be read: {error}; compare nvidia-smi mig -lgi with what "
            "should be there, then remove the file"
        ) from error
    if record.boot_id != around.roots.boot_id():
        around.record.unlink()  # the instance went with its boot
        return
    if _find(around.session, record):
        _require(around, f"Remove {record}, which an earlier check has left")
        around.say(f"removing {record}, which an earlier check has left")
    _remove(around, record)


def _remove(around: Surroundings, record: Record) -> None:
    """Remove a record's GPU instance and the record.

    Raises:
        Refused: the instance may be left; says how to remove it.
    """
    try:
        if found := _find(around.session, record):
            for destroy in (destroy_compute_instances, destroy_gpu_instance):
                _until_free(destroy, around.session, record.gpu, found.id)
    except NvmlError as error:
        raise _may_be_left(record, error) from error
    around.record.unlink(missing_ok=True)


def _may_be_left(record: Record, error: NvmlError) -> Refused:
    return Refused(
        f"the slice {record} may be left: {error}; once that is over, check --create "
        f"{record.gpu} removes it before it begins"
    )


def _find(session: Session, record: Record) -> GpuInstance | None:
    """The GPU instance of a record: at its placement, of its profile, and with its id if known."""
    placement = Placement(record.start, record.size)
    shape = geometry.Profile(record.profile_id, record.profile, 0, 0, 0, (placement,))
    for gi in list_gpu_instances(session, record.gpu, geometry.Geometry((shape,))):
        if gi.placement == placement and record.gi_id in {-1, gi.id}:
            return gi
    return None


def _until_free(
    destroy: Callable[[Session, str, int], None], session: Session, gpu: str, gi_id: int
) -> None:
    for attempt in range(_ATTEMPTS):
        try:
            destroy(session, gpu, gi_id)
        except InUseError:
            if attempt == _ATTEMPTS - 1:
                raise
            time.sleep(_PAUSE_SECONDS)
        else:
            return


def _write(path: Path, record: Record) -> None:
    try:
        write_durably(path, msgspec.json.encode(record), mode=0o600)
    except OSError as error:
        raise Refused(f"cannot write {path}: {error.strerror or error}") from error


def _require(around: Surroundings, question: str) -> None:
    if not around.ask(question):
        raise Refused("nothing was done")


def _named(report: Report, name: str, state: Path) -> Gpu:
    """The GPU called by index, UUID or ``gpu-<n>`` as the plugin names it."""
    try:
        numbers = dict(json.loads((state / "gpus.json").read_bytes())["gpus"])
    except (OSError, ValueError, KeyError, TypeError):
        numbers = {}
    for gpu in report.gpus:
        number = numbers.get(gpu.uuid, gpu.minor)
        if gpu.uuid and name in {str(gpu.index), gpu.uuid, f"gpu-{number}"}:
            return gpu
    there = ", ".join(f"{g.index} or {g.uuid}" for g in report.gpus if g.uuid) or "none"
    raise Refused(f"--create {name}: this node has no such GPU; it has: {there}")


def _refusals(gpu: Gpu, state: Path) -> Iterator[str]:
    """Reasons against slices on a GPU: anybody uses it, or nothing can be made on it."""
    if gpu.lost:
        yield "is lost; reset it or reboot the node"
    if (gpu.mig, gpu.mig_pending) != ("on", "on"):
        yield f"is not in MIG mode (now {gpu.mig}, pending {gpu.mig_pending})"
    if gpu.instances:
        places = ", ".join(f"{i.id} at {i.start}:{i.size}" for i in gpu.instances)
        yield f"has GPU instances ({places}); choose a GPU that has none"
    if gpu.processes > 0:
        yield f"is used by {gpu.processes} processes; choose an idle one"
    if not any(p.placements for p in gpu.profiles):
        yield "has no profile that can be placed"
    path = state / "journal.json"
    try:
        contents = decode(path.read_bytes())
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        yield f"may have claims: the plugin's journal {path} cannot be read ({error})"
        return
    claims = sorted({str(e.claim) for e in contents.entries if e.gpu == gpu.uuid})
    if claims:
        yield f"has claims in the plugin's journal ({', '.join(claims)}); choose one that has none"


@contextmanager
def _alone(around: Surroundings) -> Iterator[None]:
    """Keep the plugin off this node's GPUs: it waits at its start for as long as this lasts.

    A plugin that runs is left alone if it releases all GPUs, as one does whose node is drained:
    should it be resumed meanwhile, it takes the slices for another's and touches none. A state
    directory that was not there is gone again in the end.
    """
    state = around.roots.state
    made = [folder for folder in (state, *state.parents) if not folder.exists()]
    try:
        with owned_at_once(state) as owned:
            if not owned and not around.has_released():
                raise Refused(
                    f"--create: a plugin, or another check, runs on this node (it owns {state}) "
                    f"and holds its GPUs: with kubectl mig drain {node_name()} a plugin releases "
                    "them as soon as no pod has a slice; afterwards kubectl mig resume "
                    f"{node_name()}"
                )
            yield
    finally:
        if made:
            with contextlib.suppress(OSError):
                (state / "lock").unlink()
                for folder in made:
                    folder.rmdir()


@contextmanager
def _stoppable() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set, so that the slice at hand is removed first."""
    stop = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stop.set())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
