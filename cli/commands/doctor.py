"""``kubectl mig doctor``: is everything there that slices need, and does it work together?"""

from __future__ import annotations

import argparse
from collections import Counter

from cli.doctoring import cluster, leftovers, other_managers, programs
from cli.doctoring.checks import Check, Examination, Status, folded
from cli.doctoring.evidence import gather
from cli.shell.exits import Exit
from cli.shell.output import Output
from cli.shell.session import Session

EXAMINATIONS: tuple[Examination, ...] = (
    cluster.kubernetes,
    cluster.definition,
    cluster.classes,
    cluster.rights,
    cluster.limits,
    programs.controller,
    programs.plugins,
    programs.versions,
    programs.modes,
    other_managers.drivers,
    other_managers.monitors,
    other_managers.extended_resources,
    leftovers.claims,
    leftovers.instances,
)


def run(session: Session, _arguments: argparse.Namespace) -> int:
    """Examine everything; 1 when a check fails, warnings alone are 0."""
    evidence = gather(session)
    checks = [check for examine in EXAMINATIONS for check in examine(evidence)]
    counts = Counter(check.status for check in checks)
    if session.out.is_json:
        content = {
            "checks": [
                {
                    "name": c.name,
                    "status": c.status.value,
                    "message": c.message,
                    "remedy": c.remedy,
                }
                for c in checks
            ],
            "summary": {s.value: counts[s] for s in Status},
        }
        session.out.json("Diagnosis", content)
    else:
        lines = folded(checks)
        for check in lines:
            _show(check, session.out)
        of_lines = Counter(check.status for check in lines)
        shown = ", ".join(f"{of_lines[s]} {s.value}" for s in Status if of_lines[s])
        session.out.line()
        session.out.line(shown)
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
