"""``kubectl mig plan``: where slices of a profile would go, or what would have to move for them."""

from __future__ import annotations

from cli.explaining.judge import Judge
from cli.facts import read_facts
from cli.output import CliError, Exit, Output, counted, natural
from cli.planning import Forecast, forecast
from cli.session import Session, evaluator
from dra.allocator.gpustate import GpuId
from dra.allocator.planner import Step
from dra.claims.reasons import Obstacle
from dra.gpu.geometry import Placement


def run(session: Session, *, profile: str, number: int) -> int:
    """Show the plan; returns 1 where there is no room without moves."""
    with evaluator() as asked:
        facts = read_facts(session, "")
        found = forecast(facts, Judge(facts, asked), profile, number)
    if isinstance(found, Obstacle):
        raise CliError(Exit.NOT_FOUND, found.message)
    show(found, number, session.out)
    has_room = bool(found.steps) and not found.movers
    return Exit.OK if has_room else Exit.FINDING


def show(found: Forecast, number: int, out: Output) -> None:
    """Print where the slices would go, which pods move before, and what it costs."""
    profile = found.profile
    asked = [step for step in found.steps if step.mover is None]
    moves = [step for step in found.steps if step.mover is not None]
    what = counted(number, "slice") + f" of {profile}"
    if not asked:
        most = found.room.get(profile, (0, 0))[0]
        out.line(f"{out.bad('no room')} for {what}; room for {most} now")
        if found.bounded:
            out.line("  too many ways to look at all of them: ask for fewer at a time")
        else:
            out.line("  moving pods does not help: of those that would be made anew, each with one")
            out.line("  slice of its own, none or not enough could go elsewhere")
        return
    head = out.good("room") if not moves else out.odd("room after moves")
    out.line(f"{head} for {what}")
    for index, step in enumerate(moves, start=1):
        mover = step.mover
        if mover is not None:
            pod = found.movers[mover.uid]
            start = f"{_place(mover.gpu, mover.occupant.placement)} -> {_to(step)}"
            out.line(f"  {index}. pod {pod} ends, and its {mover.profile} goes {start}")
    for step in asked:
        out.line(f"  {profile} at {_to(step)}")
    if found.bounded:
        out.line("  not all ways were looked at: fewer moves may do")
    out.line()
    changed = {n: r for n, r in found.room.items() if r[0] != r[1]}
    for name, (before, after) in sorted(changed.items(), key=lambda r: natural(r[0])):
        out.line(f"  room for {name}: {before} -> {after}")
    slices = f"{found.cost:.2f} memory slices"
    out.paragraph("  ", "cost: ", f"{slices} that others are likely to lack, by the default policy")


def _to(step: Step) -> str:
    return _place(step.gpu, step.occupant.placement)


def _place(gpu: GpuId, placement: Placement) -> str:
    return f"{gpu.node} gpu-{gpu.minor} {placement}"
