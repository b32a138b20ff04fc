"""The explanation why there is nothing to look at for claims with ``adminAccess``."""

from __future__ import annotations

from dra.allocator.admin_access import picks_on
from dra.allocator.allocate import Allocator
from dra.allocator.explain.answers import AnswerReason, Explanation, NodeAnswer
from dra.allocator.problem import Problem
from dra.claims.reasons import Obstacle, Reason

_FITS = NodeAnswer(AnswerReason.FITS)
_TOO_FEW = NodeAnswer(AnswerReason.NO_SUCH_DEVICE, "has fewer GPUs to look at than are asked for")


def explain_view(problem: Problem, allocator: Allocator) -> Explanation:
    """Explanation why there is no node to look at, or which nodes there are."""
    nodes: dict[str, NodeAnswer] = {}
    fleet = allocator.fleet
    misfits: list[str] = []
    for name in sorted(fleet.nodes):
        if picks_on(problem, fleet.nodes[name], fleet.kinds) is None:
            nodes[name] = _TOO_FEW
            continue
        misfit = allocator.find_misfit(problem, name)
        nodes[name] = _FITS if misfit is None else NodeAnswer(misfit.reason, misfit.message)
        misfits += [f"{name}: {misfit.message}"] if misfit is not None else []
    namespace = problem.pod.key[0]
    if any(answer.fits for answer in nodes.values()):
        return Explanation(namespace, nodes=nodes)
    text = "; ".join(misfits)[:1000] or (
        "adminAccess looks at whole GPUs, through which their slices are seen, and no node has as "
        "many as are asked for; use class gpu.dra.dev, and allocationMode All or a smaller count"
    )
    return Explanation(namespace, Obstacle(Reason.NOTHING_TO_SEE, text), nodes)
