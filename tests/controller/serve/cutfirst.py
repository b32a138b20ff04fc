"""Pods whose slices are to be made first, and the nodes' answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dra.common.resources import MIG_NODES, PODS, Obj
from dra.gpu.inventory import MAKES_RESERVATIONS, Answer, AnswerState, FailedClaim, Reservation
from dra.gpu.mignode import reservations_of, to_mignode
from dra.gpu.names import parse_device
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import DRIVER, FINALIZER, claim, gpu, inventory, pod

GATE = {"name": FINALIZER}
TIME = "2026-01-01T00:10:00.{:06d}Z"
MADE, FAILED, REFUSED = AnswerState.MADE, AnswerState.FAILED, AnswerState.REFUSED


def config(bind_when: str) -> Obj:
    parameters = {
        "apiVersion": "mig.dra.dev/v1alpha1",
        "kind": "MigDeviceConfig",
        "preparation": {"bindWhen": bind_when},
    }
    return {"opaque": {"driver": DRIVER, "parameters": parameters}}


def site(*nodes: str, capable: bool = True) -> Bench:
    """Nodes with two A100 each."""
    bench = Bench(*(nodes or ("node-a",)))
    for name in nodes or ("node-a",):
        says(bench, name, capable=capable)
    return bench


def waiting(*nodes: str, bind_when: str = "made", gated: bool = False) -> Bench:
    """A pod whose claim is to be allocated on one of the nodes."""
    bench = site(*nodes)
    add(bench, "c", bind_when=bind_when, gated=gated)
    return bench


def add(bench: Bench, *names: str, bind_when: str = "made", gated: bool = False) -> None:
    """A pod with these claims."""
    for name in names:
        bench.claim(claim(name, config=[config(bind_when)] if bind_when else []))
    gates = [GATE] if gated else []
    bench.pod(pod(f"pod-{names[0]}", *names, schedulingGates=gates))
    bench.run()


def says(
    bench: Bench,
    node: str = "node-a",
    *,
    answers: Iterable[Answer] = (),
    failed: Iterable[FailedClaim] = (),
    capable: bool = True,
    ready: bool = True,
) -> None:
    """A node writes its MigNode, in which everything else stays as it is."""
    said = replace(
        inventory(node, gpu(0, node), gpu(1, node)),
        capabilities=(MAKES_RESERVATIONS,) if capable else (),
        answers=tuple(answers),
        failed_claims=tuple(failed),
        ready=ready,
    )
    obj = to_mignode(said)
    before = bench.api.objects.get((MIG_NODES.plural, node))
    if before and "reservations" in before["spec"]:
        obj["spec"]["reservations"] = before["spec"]["reservations"]
    bench.cluster.set_mignode(bench.api.put(MIG_NODES, obj))
    bench.run()


def reserved(bench: Bench, node: str = "node-a") -> dict[str, Reservation]:
    """Reservations in the MigNode by the claim's name."""
    return {r.claim.name: r for r in reservations_of(bench.api.get(MIG_NODES, node))}


def answers(
    bench: Bench, state: AnswerState, *names: str, node: str = "node-a", ready: bool = True
) -> None:
    """The node answers what is reserved for these claims."""
    found = reserved(bench, node)
    said = [Answer(found[n].id, state, "no memory" * (state is FAILED)) for n in names or ["c"]]
    says(bench, node, answers=said, ready=ready)


def gpus_of(found: Reservation) -> set[int]:
    return {parse_device(d.device).minor for d in found.devices}


def gates(bench: Bench, name: str = "pod-c") -> list[Obj]:
    found: list[Obj] = bench.api.get(PODS, name)["spec"].get("schedulingGates", [])
    return found
