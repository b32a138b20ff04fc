"""``kubectl mig doctor``: is everything there that slices need, and does it work together?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace

from cli.doctoring import installation, nodes
from cli.doctoring.examination import Check, Examination, Status, folded, gather
from cli.output import Exit, Output
from cli.session import Session

EXAMINATIONS: Mapping[str, Examination] = {
    "kubernetes": installation.kubernetes,
    "crd": installation.definition,
    "classes": installation.classes,
    "rights": installation.rights,
    "controller": nodes.controller,
    "installations": nodes.installations,
    "plugin": nodes.plugins,
    "runtimes": nodes.runtimes,
    "modes": nodes.modes,
    "monitors": installation.monitors,
    "claims": nodes.claims,
    "instances": nodes.instances,
}
"""Every check by its name, which scripts rely on: it must not change."""

_JSON = ("name", "status", "message", "remedy")


def run(session: Session) -> int:
    """Run every check; returns 1 when one fails, 0 with warnings alone."""
    evidence = gather(session)
    checks = [
        replace(check, name=name)
        for name, examine in EXAMINATIONS.items()
        for check in examine(evidence)
    ]
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
    if check.remedy not in check.message:
        out.paragraph(" " * 19, "> ", check.remedy)
