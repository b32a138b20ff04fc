"""``kubectl mig lint``: mistakes in manifests, without a cluster."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from cli.linting.claims import check_claim, claim_spec
from cli.linting.classes import CheckSelector, SelectsOthers, check_class
from cli.linting.documents import Document, Level, Remark, read_documents
from cli.linting.layouts import check_layouts
from cli.linting.limits import check_limits
from cli.linting.pods import check_pod, pod_spec
from cli.linting.quotas import check_quota
from cli.linting.sharing import check_containers, check_sharing
from cli.linting.sizes import check_claim_size, check_pod_size
from cli.shell.evaluating import evaluator, missing_module
from cli.shell.exits import Exit
from cli.shell.files import read_files
from cli.shell.output import Output, counted
from dra.cel.kinds import Kinds
from dra.cel.questions import SelectorError
from dra.gpu.names import DEFAULT_DRIVER


def run(out: Output, arguments: argparse.Namespace) -> int:
    """Look at all files together, so that pods find the claims that they name."""
    documents: list[Document] = []
    remarks: list[Remark] = []
    for file, content in read_files(arguments.file):
        for found in read_documents(file, content):
            if isinstance(found, Document):
                documents.append(found)
            else:
                remarks.append(found)
    remarks += _check(documents)
    remarks.sort(key=lambda r: (r.file, r.line, r.field))
    counts = Counter(r.level for r in remarks)
    if out.is_json:
        content_of = [r.as_json for r in remarks]
        summary = {level.value: counts[level] for level in Level}
        out.json("LintReport", {"remarks": content_of, "summary": summary})
    else:
        for remark in remarks:
            if arguments.hints or remark.level is not Level.HINT:
                _show(remark, out)
        shown = [counted(counts[level], level.value) for level in Level if counts[level]]
        if counts[Level.HINT] and not arguments.hints:
            shown[-1] += " (see --hints)"
        said = ", ".join(shown) or out.good("nothing to remark")
        out.line(f"{counted(len(documents), 'object')}: {said}")
    bad = counts[Level.ERROR] + (counts[Level.WARNING] if arguments.strict else 0)
    return Exit.FINDING if bad else Exit.OK


def _check(documents: list[Document]) -> Iterator[Remark]:
    with _selector_checks() as (check, selects_others):
        yield from _check_with(documents, check, selects_others)


def _check_with(
    documents: list[Document], check: CheckSelector, selects_others: SelectsOthers
) -> Iterator[Remark]:
    classes = {d.name: d for d in documents if d.kind == "DeviceClass"}
    claims = {(d.kind, d.key): spec for d in documents if (spec := claim_spec(d)) is not None}
    pods = [pod for d in documents if (pod := pod_spec(d)) is not None]
    for document in classes.values():
        yield from check_class(document, check, selects_others)
    for spec in claims.values():
        yield from check_claim(spec, classes, check)
        yield from check_sharing(spec, classes)
        yield from check_claim_size(spec)
    named: set[tuple[str, tuple[str, str]]] = set()
    for pod in pods:
        named.update(pod.references())
        yield from check_pod(pod, claims)
        yield from check_pod_size(pod, claims)
        yield from check_containers(pod, claims, classes)
        yield from check_limits(pod)
    for document in documents:
        yield from check_layouts(document)
        yield from check_quota(document)
    for (kind, key), spec in claims.items():
        if pods and (kind, key) not in named:
            message = "no pod in these files names it: claims are allocated for pods"
            yield spec.document.remark(Level.WARNING, ("metadata", "name"), message)


@contextmanager
def _selector_checks() -> Iterator[tuple[CheckSelector, SelectsOthers]]:
    """The compiler and the evaluator of CEL expressions, where they are installed."""
    if missing_module():
        yield lambda _: "", lambda _: False
        return
    with evaluator() as asked:
        kinds = Kinds(asked)

        def check(expression: str) -> str:
            try:
                kinds.check(expression)
            except SelectorError as error:
                return str(error)
            return ""

        def selects_others(expressions: tuple[str, ...]) -> bool:
            if any(check(expression) for expression in expressions):
                return False
            return kinds.selects_others(expressions, DEFAULT_DRIVER)

        yield check, selects_others


def _show(remark: Remark, out: Output) -> None:
    paint = {Level.ERROR: out.bad, Level.WARNING: out.odd, Level.HINT: out.dim}[remark.level]
    about = ": ".join(part for part in (remark.subject, remark.field) if part)
    where = f"{remark.file}:{remark.line}"
    out.line(
        f"{where}: {paint(remark.level.value)}: {about + ': ' if about else ''}{remark.message}"
    )
