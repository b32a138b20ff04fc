"""``kubectl mig release``: take our finalizer off claims that nothing holds.

Where the controller runs, it does this itself. Every write names the resourceVersion that was
judged, so that it fails if somebody has begun to use the claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cli.kept import kept
from cli.output import CliError, Exit
from cli.session import Session
from cli.site import Hindrance, Site, find_hindrance, survey
from dra.claims.claims import Claim, read_claim
from dra.common.resources import MIG_NODES, NODES, RESOURCE_CLAIMS
from dra.gpu.inventory import ClaimRef
from dra.gpu.names import finalizer
from dra.kube.errors import ConflictError, InvalidError, ObjectNotFoundError

_MANAGER = "kubectl-mig"


def run(  # noqa: PLR0913 - the options of the command
    session: Session,
    *,
    name: Sequence[str],
    every: bool,
    all_namespaces: bool,
    dry_run: bool,
    force: bool,
) -> int:
    """Release the claims that nothing holds, and print what holds the others."""
    if bool(name) == every:
        raise CliError(Exit.USAGE, "release: say which claims, by their names or with --all")
    if all_namespaces and not every:
        raise CliError(Exit.USAGE, "release: --all-namespaces goes with --all")
    claims = _claims(session, "" if all_namespaces else session.namespace, name)
    site, nodes = _nodes(session)
    released: list[ClaimRef] = []
    kept: dict[ClaimRef, Hindrance] = {}
    for claim in claims:
        held = find_hindrance(claim, site, nodes, driver=session.driver)
        if held is not None and force and held.forcible:
            held = None
        if held is None and not dry_run:
            held = _release(session, claim)
        if held is None:
            released.append(claim.ref)
        else:
            kept[claim.ref] = held
    _report(session, released, kept, "would be released" if dry_run else "released")
    return Exit.FINDING if kept else Exit.OK


def _claims(session: Session, namespace: str, names: Sequence[str]) -> list[Claim]:
    """The claims that have our finalizer; only those of ``names``, if some are given.

    Raises:
        CliError: there is no claim of a given name.
    """
    keep = kept(session.driver)[RESOURCE_CLAIMS]
    listed = session.api.list(RESOURCE_CLAIMS, namespace=namespace, keep=keep).items
    found = [read_claim(c) for c in listed]
    if missing := sorted({*names} - {c.ref.name for c in found}):
        raise CliError(
            Exit.NOT_FOUND, f"namespace {namespace} has no claim {', '.join(map(repr, missing))}"
        )
    ours = finalizer(session.driver)
    meant = [c for c in found if ours in c.finalizers and (not names or c.ref.name in names)]
    return sorted(meant, key=lambda c: (c.ref.namespace, c.ref.name))


def _nodes(session: Session) -> tuple[Site, frozenset[str]]:
    """The site that the MigNodes show, and the names of the Nodes."""
    try:
        objects = session.api.list(MIG_NODES).items
    except ObjectNotFoundError:  # the definition was removed with the driver
        objects = []
    site = survey(objects, (), driver=session.driver, now=session.now())
    return site, frozenset(n["metadata"]["name"] for n in session.api.list(NODES).items)


def _release(session: Session, claim: Claim) -> Hindrance | None:
    """Take our finalizer off a claim, and an allocation of ours that nobody else would end.

    The allocation of a claim that is being deleted goes with the claim. Returns the reason if the
    API server does not accept it, None otherwise.
    """
    ref, version, allocation = claim.ref, claim.resource_version, claim.allocation
    left = [f for f in claim.finalizers if f != finalizer(session.driver)]
    deallocates = (
        allocation is not None
        and not (claim.deleting or claim.ended_by_control_plane)
        and bool(allocation.of_driver(session.driver))
    )
    try:
        if deallocates:
            body = {"metadata": {}, "status": {"allocation": None}}
            version = _patch(session, ref, version, body, subresource="status")
        _patch(session, ref, version, {"metadata": {"finalizers": left or None}})
    except ObjectNotFoundError:
        return None
    except ConflictError:
        return Hindrance("it has just changed; try again")
    except InvalidError as error:
        return Hindrance(f"the API server refuses: {error}")
    return None


def _patch(
    session: Session,
    ref: ClaimRef,
    version: str,
    body: Mapping[str, Any],
    *,
    subresource: str = "",
) -> str:
    """Change a claim if its resourceVersion is still ``version``; returns the new one."""
    metadata = {"uid": ref.uid, "resourceVersion": version, **body["metadata"]}
    changed = session.api.patch(
        RESOURCE_CLAIMS,
        ref.name,
        {**body, "metadata": metadata},
        namespace=ref.namespace,
        subresource=subresource,
        field_manager=_MANAGER,
    )
    return str(changed["metadata"]["resourceVersion"])


def _report(
    session: Session, released: list[ClaimRef], kept: Mapping[ClaimRef, Hindrance], word: str
) -> None:
    out = session.out
    for ref in released:
        out.line(f"{ref}  {word}")
    for ref, held in kept.items():
        out.line(f"{ref}  {out.odd('kept')}: {held.message}")
    if not released and not kept:
        out.line(out.good(f"no such claim has finalizer {finalizer(session.driver)}"))
    if any(held.forcible for held in kept.values()):
        out.line("--force releases claims that only a node still holds, if that node is given up")
