"""``kubectl mig release``: take our finalizer off claims that nothing holds.

What the controller does where it runs. Every write names the resourceVersion that was judged, so
that whoever uses the claim meanwhile wins.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from cli.shell.exits import CliError, Exit
from cli.shell.session import Session
from cli.site.occupancy import survey
from cli.site.reading import inventories
from cli.site.releasing import Hindrance, find_hindrance, is_ours_to_deallocate
from dra.claims.claims import Claim, read_claim
from dra.common.resources import MIG_NODES, NODES, RESOURCE_CLAIMS, Obj
from dra.gpu.inventory import ClaimRef
from dra.gpu.names import finalizer
from dra.kube.errors import ConflictError, InvalidError, ObjectNotFoundError

_MANAGER = "kubectl-mig"


def run(session: Session, arguments: argparse.Namespace) -> int:
    """Release what may go, and say what holds the others."""
    _check(arguments)
    claims = _claims(session, arguments)
    blockers = _hindrances(session, claims)
    released: list[ClaimRef] = []
    kept: dict[ClaimRef, Hindrance] = {}
    for claim in claims:
        held = blockers.get(claim.ref)
        if held is not None and arguments.force and held.forcible:
            held = None
        if held is None and not arguments.dry_run:
            held = _release(session, claim)
        if held is None:
            released.append(claim.ref)
        else:
            kept[claim.ref] = held
    _report(session, released, kept, dry_run=arguments.dry_run)
    return Exit.FINDING if kept else Exit.OK


def _check(arguments: argparse.Namespace) -> None:
    if bool(arguments.name) == arguments.all:
        raise CliError(Exit.USAGE, "release: say which claims, by their names or with --all")
    if arguments.all_namespaces and not arguments.all:
        raise CliError(Exit.USAGE, "release: --all-namespaces goes with --all")


def _claims(session: Session, arguments: argparse.Namespace) -> list[Claim]:
    """The claims that are meant and that have our finalizer.

    Raises:
        CliError: there is no claim of a given name.
    """
    namespace = "" if arguments.all_namespaces else session.namespace
    found = [read_claim(c) for c in session.api.list(RESOURCE_CLAIMS, namespace=namespace).items]
    missing = sorted({*arguments.name} - {c.ref.name for c in found})
    if missing:
        raise CliError(
            Exit.NOT_FOUND, f"namespace {namespace} has no claim {', '.join(map(repr, missing))}"
        )
    ours = finalizer(session.driver)
    return sorted(
        (
            c
            for c in found
            if ours in c.finalizers and (arguments.all or c.ref.name in arguments.name)
        ),
        key=lambda c: (c.ref.namespace, c.ref.name),
    )


def _hindrances(session: Session, claims: Iterable[Claim]) -> dict[ClaimRef, Hindrance]:
    try:
        objects = session.api.list(MIG_NODES).items
    except ObjectNotFoundError:  # the definition was removed with the driver
        objects = []
    read, unreadable = inventories(objects)
    site = survey(read, (), driver=session.driver, unreadable=unreadable)
    nodes = frozenset(n["metadata"]["name"] for n in session.api.list(NODES).items)
    judged = ((c.ref, find_hindrance(c, site, nodes, driver=session.driver)) for c in claims)
    return {ref: held for ref, held in judged if held is not None}


def _release(session: Session, claim: Claim) -> Hindrance | None:
    """Take the finalizer off; returns what came between."""
    ours = finalizer(session.driver)
    left = [f for f in claim.finalizers if f != ours]
    version = claim.resource_version
    try:
        if is_ours_to_deallocate(claim, driver=session.driver):
            body: Obj = {"status": {"allocation": None}}
            version = _patch(session, claim.ref, version, body, subresource="status")
        _patch(session, claim.ref, version, {"metadata": {"finalizers": left or None}})
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
    """Change a claim if it is as it was at ``version``; returns its new resourceVersion."""
    metadata = {"uid": ref.uid, "resourceVersion": version, **body.get("metadata", {})}
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
    session: Session,
    released: list[ClaimRef],
    kept: Mapping[ClaimRef, Hindrance],
    *,
    dry_run: bool,
) -> None:
    out = session.out
    if out.is_json:
        content = {
            "dryRun": dry_run,
            "released": [_named(ref) for ref in released],
            "kept": [
                {**_named(ref), "message": held.message, "forcible": held.forcible}
                for ref, held in kept.items()
            ],
        }
        out.json("Release", content)
        return
    for ref in released:
        out.line(f"{ref}  {'would be released' if dry_run else 'released'}")
    for ref, held in kept.items():
        out.line(f"{ref}  {out.odd('kept')}: {held.message}")
    if not released and not kept:
        out.line(out.good(f"no such claim has finalizer {finalizer(session.driver)}"))
    if any(held.forcible for held in kept.values()):
        out.line("--force releases claims that only a node still holds, if that node is given up")


def _named(ref: ClaimRef) -> dict[str, str]:
    return {"namespace": ref.namespace, "name": ref.name}
