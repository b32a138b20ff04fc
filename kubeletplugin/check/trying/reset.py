"""Reset of a lost GPU by a person, and its return to the NVML session that saw it lost."""

from __future__ import annotations

from collections.abc import Callable

from kubeletplugin.check.errors import RefusedError
from kubeletplugin.check.items import Item
from kubeletplugin.check.looking.gpus import read_gpu
from kubeletplugin.check.report import Belief
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.nvml.session.session import Session


def await_reset(session: Session, index: int, *, ask: Callable[[str], bool]) -> Belief:
    """Ask for the reset of the GPU at ``index``, and see which session sees it again.

    Raises:
        RefusedError: the GPU is not lost, or the person gave up.
    """
    if not read_gpu(session, index).lost:
        raise RefusedError(f"--await-reset {index}: that GPU is not lost")
    if not ask(f"Reset the GPU with index {index} now, then answer yes. Has it been reset"):
        raise RefusedError("nothing was done")
    if not read_gpu(session, index).lost:
        return Belief(item=Item.AFTER_LOSS, answer="same", detail="it answers in the same session")
    session.close()
    try:
        session.open()
    except NvmlError as error:
        return Belief(item=Item.AFTER_LOSS, answer="open", detail=str(error))
    if read_gpu(session, index).lost:
        return Belief(item=Item.AFTER_LOSS, answer="open", detail="it is lost all the same")
    detail = "it answers only after nvmlShutdown and nvmlInit"
    return Belief(item=Item.AFTER_LOSS, answer="anew", detail=detail)
