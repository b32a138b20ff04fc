"""Remarks on pods that ask by limits, as for other systems."""

from __future__ import annotations

from collections.abc import Iterator

from cli.linting.documents import Level, Remark
from cli.linting.pods import PodSpec
from dra.limits.others import Translation, translate


def check_limits(pod: PodSpec) -> Iterator[Remark]:
    """Findings about one pod, and what its limits become."""
    translation = translate(pod.whole)
    yield from remarks_of(pod, translation)
    if translation.slices and not translation.refused:
        asked = ", ".join(f"{count} of {name}" for name, count in translation.slices.items())
        yield pod.document.remark(
            Level.WARNING,
            pod.at,
            f"its limits are those of another system: they become claims ({asked}) in namespaces "
            "with label mig.dra.dev/limits=claims, and are extended resources elsewhere, which "
            "only nodes serve that kube-scheduler allocates; kubectl mig convert prints it with "
            "claims",
        )


def remarks_of(pod: PodSpec, translation: Translation) -> Iterator[Remark]:
    """The findings of a translation, at their lines."""
    for finding in translation.findings:
        level = Level.ERROR if finding.refused else Level.WARNING
        yield pod.document.remark(level, (*pod.at[:-1], *finding.path), finding.message)
