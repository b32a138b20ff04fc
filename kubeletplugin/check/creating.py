"""Trials of ``check --create``: makes and removes one slice of each profile of an idle GPU, twice.

Each slice is recorded before it is made (``check.json`` in the plugin's state directory), and is
removed before the next one is made, by the functions that the plugin itself uses. A slice that a
killed check has left is removed by the next check.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import click
import msgspec

from cdi.files import write_durably
from dra.gpu.geometry import Profile
from dra.gpu.inventory import ClaimRef
from kubeletplugin.check.report import Trial
from kubeletplugin.gpus.identity import Identity
from kubeletplugin.host.roots import Roots
from kubeletplugin.journal.entries import Entry, State
from kubeletplugin.journal.journal import decode
from kubeletplugin.nvml.errors import HangError, InUseError, NvmlError, node_name
from kubeletplugin.nvml.gpus import Card, discover
from kubeletplugin.nvml.instances import (
    GpuInstance,
    create_compute_instance,
    create_gpu_instance,
    destroy_compute_instances,
    destroy_gpu_instance,
    list_gpu_instances,
    processes,
)
from kubeletplugin.nvml.session import Session
from kubeletplugin.ownership import LOCK, owned_at_once

ROUNDS = 2
_ATTEMPTS = 20
_PAUSE_SECONDS = 0.25
_NOBODY = ClaimRef("mig.check", "check", "check")


class Refused(click.ClickException):
    """The check ends without a result; the text says why, and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """Makes and removes slices, each recorded in ``check.json`` as long as it may be there.

    ``has_released``: returns True if the running plugin has no GPU open. ``ask``: puts a question
    to a person; returns True for yes. ``say``: reports progress.
    """

    session: Session
    roots: Roots
    has_released: Callable[[], bool]
    ask: Callable[[str], bool]
    say: Callable[[str], None]

    def run(self, name: str) -> tuple[Trial, ...]:
        """Make and remove slices on the GPU called ``name``; returns the outcome of each attempt.

        Raises:
            Refused: the GPU may not be used, or the check was stopped; if a slice may be left, the
                text names it.
            NvmlError: the GPU cannot be asked.
        """
        uuid = self._named(name)
        with _alone(self.roots, self.has_released), _stoppable() as stop:
            self._remove_left()
            found = discover(self.session)
            card = next((c for c in found.cards if c.uuid == uuid), None)
            if card is None:
                raise Refused(f"--create: GPU {uuid} answers no more: {'; '.join(found.problems)}")
            for refusal in self._refusals(card):
                raise Refused(f"--create: GPU {uuid} {refusal}")
            profiles = card.geometry.profiles if card.geometry else ()
            self._require(
                f"GPU {uuid} ({card.product_name}) is idle. Make and remove one slice of each of "
                f"its {len(profiles)} profiles, {ROUNDS} times? Nothing else is changed"
            )
            trials = []
            for number in range(1, ROUNDS + 1):
                for profile in profiles:
                    if stop.is_set():
                        raise Refused("stopped; nothing is left on the GPU")
                    self.say(f"round {number} of {ROUNDS}: {profile.name}")
                    trials.append(self._try(uuid, profile, number))
        return tuple(trials)

    def _try(self, gpu: str, profile: Profile, number: int) -> Trial:
        session, place = self.session, profile.placements[0]
        trial = Trial(profile=profile.name, start=place.start, size=place.size, round=number)
        record = Entry(
            _NOBODY,
            f"{profile.name} at {place} of GPU {gpu}",
            State.INTENT,
            gpu,
            self.roots.boot_id(),
            profile_id=profile.id,
            profile=profile.name,
            placement=place,
        )
        self._write(record)
        try:
            gi = create_gpu_instance(session, gpu, profile=profile, placement=place)
            record = replace(record, state=State.GI_CREATED, gi_id=gi.id)
            self._write(record)
            made = create_compute_instance(session, gpu, gi_id=gi.id, profile=profile)
            trial = msgspec.structs.replace(
                trial,
                uuid=made.uuid,
                multiprocessors=made.multiprocessors,
                memory_mib=made.memory_mib,
            )
        except HangError as error:  # the call may still make an instance: the record stays
            raise _may_be_left(record, error) from error
        except NvmlError as error:
            trial = msgspec.structs.replace(trial, refused=str(error))
        self._remove(record)
        return trial

    @property
    def _path(self) -> Path:
        return self.roots.state / "check.json"

    def _remove_left(self) -> None:
        """Remove a slice that a killed check has left, if a person agrees."""
        try:
            record = msgspec.json.decode(self._path.read_bytes(), type=Entry)
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError) as error:
            raise Refused(
                f"{self._path} cannot be read: {error}; compare nvidia-smi mig -lgi with what "
                "should be there, then remove the file"
            ) from error
        if self._own(record):
            self._require(f"Remove {record.device}, which an earlier check has left")
            self.say(f"removing {record.device}, which an earlier check has left")
        self._remove(record)

    def _remove(self, record: Entry) -> None:
        try:
            if found := self._own(record):
                for destroy in (destroy_compute_instances, destroy_gpu_instance):
                    _until_free(lambda d=destroy: d(self.session, record.gpu, found.id))  # type: ignore[misc]
        except NvmlError as error:
            raise _may_be_left(record, error) from error
        self._path.unlink(missing_ok=True)

    def _own(self, record: Entry) -> GpuInstance | None:
        return Identity(self.session, boot_id=self.roots.boot_id()).own_instance(record)

    def _write(self, record: Entry) -> None:
        try:
            write_durably(self._path, msgspec.json.encode(record), mode=0o600)
        except OSError as error:
            raise Refused(f"cannot write {self._path}: {error.strerror or error}") from error

    def _require(self, question: str) -> None:
        if not self.ask(question):
            raise Refused("nothing was done")

    def _named(self, name: str) -> str:
        """UUID of the GPU with this index, UUID or plugin's name ``gpu-<n>``."""
        try:
            numbers = dict(json.loads((self.roots.state / "gpus.json").read_bytes())["gpus"])
        except (OSError, ValueError, KeyError, TypeError):
            numbers = {}
        cards = discover(self.session).cards
        with contextlib.suppress(NvmlError):
            if name.isdecimal():
                return self.session.take(int(name)).uuid
        for card in cards:
            if name in {card.uuid, f"gpu-{numbers.get(card.uuid, card.minor)}"}:
                return card.uuid
        there = ", ".join(c.uuid for c in cards) or "none"
        raise Refused(f"--create {name}: this node has no such GPU; it has: {there}")

    def _refusals(self, card: Card) -> Iterator[str]:
        """Reasons against trials on a GPU: somebody uses it, or no slice can be made on it."""
        if card.reason:
            yield f"cannot be used: {card.problem}"
        if not card.mig_enabled or card.geometry is None or not card.geometry.profiles:
            yield "is not in MIG mode, or has no profile that can be placed"
            return
        if found := list_gpu_instances(self.session, card.uuid, card.geometry):
            places = ", ".join(f"{i.id} at {i.placement}" for i in found)
            yield f"has GPU instances ({places}); choose a GPU that has none"
        if used := processes(self.session, card.uuid):
            yield f"is used by {len(used)} processes; choose an idle one"
        path = self.roots.state / "journal.json"
        try:
            entries = decode(path.read_bytes()).entries
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            yield f"may have claims: the plugin's journal {path} cannot be read ({error})"
            return
        claims = sorted({str(e.claim) for e in entries if e.gpu == card.uuid})
        if claims:
            yield f"has claims in the plugin's journal ({', '.join(claims)}); choose another GPU"


def _may_be_left(record: Entry, error: NvmlError) -> Refused:
    return Refused(
        f"the slice {record.device} may be left: {error}; once that is over, check --create "
        f"{record.gpu} removes it before it begins"
    )


def _until_free(destroy: Callable[[], None]) -> None:
    for _ in range(_ATTEMPTS):
        try:
            return destroy()
        except InUseError:
            time.sleep(_PAUSE_SECONDS)
    return destroy()


@contextmanager
def _alone(roots: Roots, has_released: Callable[[], bool]) -> Iterator[None]:
    """Own the GPUs of the node, so that a plugin that starts waits until this ends.

    A plugin that runs already may go on if it has released all GPUs, as it does while its node is
    drained. If it is resumed meanwhile, the slices of the check are foreign to it, and it touches
    none of them. Directories that were not there are removed in the end.

    Raises:
        Refused: a running plugin has GPUs open.
    """
    wanted = (roots.state, roots.registry)
    made = {f for folder in wanted for f in (folder, *folder.parents) if not f.exists()}
    try:
        roots.state.mkdir(parents=True, exist_ok=True)
        own = "a check (python -m kubeletplugin check --create)"
        with owned_at_once(roots.registry, own) as owner:
            if owner and not has_released():
                raise Refused(
                    f"--create: {owner} has the GPUs of this node: with kubectl mig drain "
                    f"{node_name()} a plugin releases them as soon as no pod has a slice; "
                    f"afterwards kubectl mig resume {node_name()}"
                )
            yield
    finally:
        with contextlib.suppress(OSError):
            if roots.registry in made:
                (roots.registry / LOCK).unlink()
            for folder in sorted(made, key=lambda each: len(each.parts), reverse=True):
                folder.rmdir()


@contextmanager
def _stoppable() -> Iterator[threading.Event]:
    """Event that Ctrl-C, SIGTERM and SIGHUP set instead of ending the process at once.

    So the present slice is removed before the check ends.
    """
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
