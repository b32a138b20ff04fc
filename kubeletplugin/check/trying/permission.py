"""Permission to make and remove slices on a GPU: only where nobody else has anything on it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kubeletplugin.check.errors import RefusedError
from kubeletplugin.check.report import Gpu, Report
from kubeletplugin.check.trying.leftovers import CLEAN_UP, RecordFile
from kubeletplugin.journal.journalfile import decode
from kubeletplugin.journal.ownership import owned_at_once


def named(report: Report, name: str, state: Path) -> Gpu:
    """The GPU called by index, UUID or ``gpu-<n>`` as the plugin names it.

    Raises:
        RefusedError: there is none of that name; tells those there are.
    """
    numbers = _numbers(state)
    for gpu in report.gpus:
        if gpu.uuid and name in {str(gpu.index), gpu.uuid, device_name(gpu, numbers)}:
            return gpu
    there = ", ".join(f"{g.index} or {g.uuid}" for g in report.gpus if g.uuid) or "none"
    raise RefusedError(f"--create {name}: this node has no such GPU; it has: {there}")


def device_name(gpu: Gpu, numbers: dict[str, int]) -> str:
    """``gpu-<n>``."""
    return f"gpu-{numbers.get(gpu.uuid, gpu.minor)}"


def require_idle(gpu: Gpu, state: Path) -> None:
    """Refuse a GPU that anybody uses, or on which nothing can be made.

    Raises:
        RefusedError: says why, and what to do.
    """
    for refusal in _refusals(gpu, state):
        raise RefusedError(f"--create: GPU {gpu.uuid} {refusal}")


def _refusals(gpu: Gpu, state: Path) -> Iterator[str]:
    if RecordFile(state).read() is not None:
        yield f"cannot be tried while {RecordFile(state).path} is there: run {CLEAN_UP}"
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
    yield from _of_the_journal(gpu, state)


def _of_the_journal(gpu: Gpu, state: Path) -> Iterator[str]:
    path = state / "journal.json"
    try:
        contents = decode(path.read_bytes())
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        yield f"may have claims: the plugin's journal {path} cannot be read ({error})"
        return
    claims = sorted({str(e.claim) for e in contents.entries if e.gpu == gpu.uuid})
    if claims or contents.unread:
        who = ", ".join(claims) or "records that cannot be read"
        yield f"has claims in the plugin's journal ({who}); choose a GPU that has none"


@contextmanager
def alone(state: Path, *, lets_go: Callable[[], bool]) -> Iterator[None]:
    """Keep the plugin off this node's GPUs: it waits at its start for as long as this lasts.

    A plugin that runs is left alone if it ``lets_go`` of all GPUs, as one does whose node is
    drained: should it be resumed meanwhile, it takes the slices for another's and touches none.
    A state directory that was not there is gone again in the end.

    Raises:
        RefusedError: the plugin runs and holds GPUs.
    """
    made = [folder for folder in (state, *state.parents) if not folder.exists()]
    try:
        with owned_at_once(state) as owned:
            if not owned and not lets_go():
                raise RefusedError(
                    f"--create: a plugin, or another check, runs on this node (it owns {state}) "
                    "and holds its GPUs: with kubectl mig drain <node> a plugin lets go of them as "
                    "soon as no pod has a slice; afterwards kubectl mig resume <node>"
                )
            yield
    finally:
        if made:
            with contextlib.suppress(OSError):
                (state / "lock").unlink()
                for folder in made:
                    folder.rmdir()


def _numbers(state: Path) -> dict[str, int]:
    try:
        return dict(json.loads((state / "gpus.json").read_bytes())["gpus"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}
