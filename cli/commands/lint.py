"""``kubectl mig lint``: mistakes in manifests, without a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from cli.linting.administration import check_layouts, check_quota
from cli.linting.claims import ClaimSpec, Manifests, check_claim, check_class
from cli.linting.documents import Document, Level, Remark, read_files
from cli.linting.pods import NOT_LOOKED_AT, PodSpec, check_pod, pods_of
from cli.output import Exit, Output, counted
from cli.session import evaluator
from dra.cel.kinds import Kinds


def run(out: Output, *, file: Sequence[str], strict: bool, driver: str) -> int:
    """Check all files together, so that pods find the claims that they name."""
    found = [*read_files(file)]
    documents = [each for each in found if isinstance(each, Document)]
    remarks = [each for each in found if isinstance(each, Remark)]
    with evaluator() as sandbox:
        remarks += _check(documents, Kinds(sandbox), driver)
    remarks.sort(key=lambda r: (r.file, r.line, r.field))
    counts = Counter(r.level for r in remarks)
    if out.is_json:
        summary = {level.value: counts[level] for level in Level}
        out.json("LintReport", {"remarks": remarks, "summary": summary})
    else:
        paint = {Level.ERROR: out.bad, Level.WARNING: out.odd}
        for remark in remarks:
            out.line(remark.shown(paint[remark.level](remark.level.value)))
        shown = [counted(counts[level], level.value) for level in Level if counts[level]]
        said = ", ".join(shown) or out.good("nothing to remark")
        if aside := sum(remark.message == NOT_LOOKED_AT for remark in remarks):
            said += f"; not looked at, or in part: {aside}"
        out.line(f"{counted(len(documents), 'object')}: {said}")
    bad = counts[Level.ERROR] + (counts[Level.WARNING] if strict else 0)
    return Exit.FINDING if bad else Exit.OK


def _check(documents: Sequence[Document], kinds: Kinds, driver: str) -> Iterator[Remark]:
    known = Manifests({}, {}, kinds, driver)
    found = [each for one in documents for each in (*pods_of(one), *known.add(one))]
    for each in found:
        match each:
            case Remark():
                yield each
            case Document():
                yield from check_class(each, known)
            case ClaimSpec():
                yield from check_claim(each, known)
            case PodSpec():
                yield from check_pod(each, known)
    for document in documents:
        yield from check_layouts(document)
        yield from check_quota(document)
