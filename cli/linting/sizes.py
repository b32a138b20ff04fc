"""Rules for what is too large for this driver to read, in the words of the controller's events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cli.linting.claims import ClaimSpec
from cli.linting.documents import Level, Remark
from cli.linting.fields import entries, text
from cli.linting.pods import PodSpec
from dra.allocator.problem import too_large
from dra.claims.claims import read_claim
from dra.claims.reader import MOST_CHOICES, TOO_MANY
from dra.claims.requests import find_unsupported
from dra.claims.trimming import is_stub, trim_claim_spec
from dra.gpu.names import DEFAULT_DRIVER
from dra.limits.rewriting import rewritten
from dra.pods.pods import UNREAD
from dra.pods.trimming import trim_pod

_MALFORMED = (LookupError, TypeError, ValueError, AttributeError)
"""Errors of what is not as it should be, which other rules tell of."""


def check_claim_size(spec: ClaimSpec) -> Iterator[Remark]:
    """A claim with more requests, constraints or parameters for this driver than are read."""
    try:
        trimmed = trim_claim_spec({"devices": spec.devices}, DEFAULT_DRIVER)
        if not is_stub(trimmed):
            return
        metadata = {"namespace": "", "name": "", "uid": ""}
        obstacle = find_unsupported(read_claim({"metadata": metadata, "spec": trimmed}))
    except _MALFORMED:
        return
    if obstacle is not None:
        yield spec.document.remark(Level.ERROR, spec.at, obstacle.message)


def check_pod_size(
    pod: PodSpec, claims: Mapping[tuple[str, tuple[str, str]], ClaimSpec]
) -> Iterator[Remark]:
    """A pod of which more would have to be read than is; ``claims`` are those of all files.

    One that asks by limits is looked at as it is where they become claims.
    """
    yield from _choices(pod, claims)
    has_claims = bool(pod.spec.get("resourceClaims"))
    try:
        whole: dict[str, Any] = pod.whole if has_claims else rewritten(pod.whole)
        why = ""
        if whole["spec"].get("resourceClaims"):
            why = trim_pod(whole, ())["spec"].get(UNREAD, "")
    except _MALFORMED:
        return
    if why:
        level = Level.ERROR if has_claims else Level.WARNING
        yield pod.document.remark(level, pod.at, too_large(why).message)


def _choices(
    pod: PodSpec, claims: Mapping[tuple[str, tuple[str, str]], ClaimSpec]
) -> Iterator[Remark]:
    """More requests and alternatives, in all claims of the pod, than are read together."""
    count, namespace = 0, pod.document.key[0]
    for index, entry in entries(pod.spec, "resourceClaims"):
        one, other = (text(entry, f"resourceClaim{kind}") for kind in ("Name", "TemplateName"))
        kind = "ResourceClaim" if one else "ResourceClaimTemplate"
        spec = claims.get((kind, (namespace, one or other)))
        count += sum(len(r.choices) for r in spec.understood) if spec is not None else 0
        if count > MOST_CHOICES:
            where = (*pod.at, "resourceClaims", index)
            yield pod.document.remark(Level.ERROR, where, TOO_MANY.message)
            return
