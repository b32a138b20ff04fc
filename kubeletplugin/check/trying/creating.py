"""``check --create`` and ``--clean-up``: asked for, permitted, carried out, left clean."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from kubeletplugin.check.errors import CheckError, RefusedError
from kubeletplugin.check.items import Item
from kubeletplugin.check.looking.gpus import read_gpu, read_gpus
from kubeletplugin.check.report import Gpu, Mark, Report
from kubeletplugin.check.trying.experiment import ROUNDS, Experiment
from kubeletplugin.check.trying.leftovers import RecordFile, remove
from kubeletplugin.check.trying.permission import alone, named, require_idle
from kubeletplugin.check.trying.settling import settle
from kubeletplugin.check.trying.tools import Tools
from kubeletplugin.host.roots import Roots
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.nvml.session.session import Session


def create(  # noqa: PLR0913 - what it works with
    report: Report,
    name: str,
    session: Session,
    *,
    roots: Roots,
    tools: Tools,
    ask: Callable[[str], bool],
    say: Callable[[str], None],
) -> Report:
    """Make and remove slices on the GPU called ``name``; the report with what was settled.

    ``ask`` puts the question to a person.

    Raises:
        CheckError: it may not be done, or was stopped; nothing is left, or the text says what is.
    """
    gpu = named(report, name, roots.state)
    with alone(roots.state, lets_go=tools.lets_go):
        gpu = read_gpu(session, gpu.index)  # as it is now that no plugin can begin
        require_idle(gpu, roots.state)
        if not ask(_question(gpu, report)):
            raise RefusedError("nothing was done")
        with _stoppable() as stop:
            seen = Experiment(session, gpu, roots=roots, tools=tools, stop=stop, say=say).run()
            shutdown = tools.shutdown()
    beliefs = (*report.beliefs, *settle(seen, shutdown=shutdown))
    return replace(report, beliefs=beliefs, trials=tuple(seen.trials))


def clean_up(session: Session, roots: Roots, tools: Tools) -> str:
    """Remove what a check that was killed has left; says in words what that was.

    Raises:
        CheckError: it cannot be removed now.
    """
    file = RecordFile(roots.state)
    record = file.read()
    if record is None:
        return f"nothing is left: there is no {file.path}"
    what = f"{record.profile} at {record.placement} of GPU {record.gpu}"
    if record.boot_id != roots.boot_id():
        file.remove()
        return f"{what} went with an earlier boot; {file.path} is removed"
    with alone(roots.state, lets_go=tools.lets_go):
        try:
            session.open()
            read_gpus(session)
            removed = remove(session, record)
        except NvmlError as error:
            raise CheckError(f"{what} cannot be removed: {error}") from error
        file.remove()
    return f"removed {what}" if removed is not None else f"{what} was not there"


def _question(gpu: Gpu, report: Report) -> str:
    names = [p.name for p in gpu.profiles if p.placements]
    others = [
        f"{finding.text}. "
        for finding in report.findings
        if finding.item is Item.NEIGHBOURS and finding.mark is Mark.NOTE
    ]
    return "".join(others) + (
        f"GPU {gpu.uuid} ({gpu.product}) is idle. Make and remove one slice of each of its "
        f"{len(names)} profiles, {ROUNDS} times? Nothing else is changed"
    )


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
