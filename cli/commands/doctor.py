"""``kubectl mig doctor``: is everything there that slices need, and does it work together?"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

from cli.doctoring import installation, nodes
from cli.doctoring.examination import Check, Examination, Status, folded, gather
from cli.exits import Exit
from cli.output import Output
from cli.session import Session

EXAMINATIONS: tuple[Examination, ...] = (
    installation.kubernetes,
    installation.definition,
    installation.classes,
    installation.rights,
    installation.limits,
    nodes.controller,
    nodes.plugins,
    nodes.versions,
    nodes.modes,
    installation.drivers,
    installation.monitors,
    installation.extended_resources,
    nodes.claims,
    nodes.instances,
)
_JSON = ("name", "status", "message", "remedy")


def run(session: Session) -> int:
    """Run every check; returns 1 when one fails, 0 with warnings alone."""
    evidence = gather(session)
    checks = [check for examine in EXAMINATIONS for check in examine(evidence)]
    counts = Counter(check.status for check in checks)
    if session.out.is_json:
        shown = [{field: asdict(check)[field] for field in _JSON} for check in checks]
        summary = {s.value: counts[s] for s in Status}
        session.out.json("Diagnosis", {"checks": shown, "summary": summary})
    else:
        lines = folded(checks)
        for check in lines:
            _show(check, session.out)
        of_lines = Counter(check.status for check in lines)
        session.out.line()
        session.out.line(", ".join(f"{of_lines[s]} {s.value}" for s in Status if of_lines[s]))
    return Exit.FINDING if counts[Status.FAIL] else Exit.OK


def _show(check: Check, out: Output) -> None:
    paint = {
        Status.OK: out.good,
        Status.WARN: out.odd,
        Status.FAIL: out.bad,
        Status.UNKNOWN: out.dim,
    }[check.status]
    out.paragraph("", f"{paint(f'{check.status.value:<7}')} {check.name:<14} ", check.message)
    if check.remedy:
        out.paragraph(" " * 19, "> ", check.remedy)
