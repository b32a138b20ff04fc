"""``kubectl mig release``: what may lose the driver's finalizer, and what is kept, by whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from dra.common.resources import MIG_NODES, RESOURCE_CLAIMS
from dra.gpu.inventory import ClaimRef
from dra.kube.client import KubeApi
from dra.kube.errors import ObjectNotFoundError
from tests.cli.conftest import Mig
from tests.cli.world import World
from tests.controller.helpers.objects import DRIVER, FINALIZER, gpu, instance

DEVICE = "gpu-0-mig-1g5gb-19-0"


def finalizers(world: World, name: str) -> list[str]:
    found = world.api.get(RESOURCE_CLAIMS, name, namespace="default")
    return [*found["metadata"].get("finalizers", ())]


def exists(world: World, name: str) -> bool:
    return any(c["metadata"]["name"] == name for c in world.api.list(RESOURCE_CLAIMS).items)


def delete(world: World, name: str) -> None:
    world.api.delete(RESOURCE_CLAIMS, name, namespace="default")


def allocated(world: World, *, node: str = "node-a", pod_name: str = "") -> Any:
    body = world.hold("c", node, DEVICE, pod_name=pod_name)
    world.set_finalizers("c")
    return body


def show_instance(world: World, uid: str, state: str = "prepared", message: str = "") -> None:
    made = structs.replace(
        instance("1g.5gb", 0, state=state), claim=ClaimRef("default", "c", uid), message=message
    )
    world.replace_gpus("node-a", gpu(0, "node-a", instances=(made,)))


# -- what goes


def test_a_claim_of_a_node_that_is_gone_goes_although_its_mignode_is_left(
    world: World, mig: Mig
) -> None:
    world.add_mignode("node-a")
    made = allocated(world)
    show_instance(world, made["metadata"]["uid"])
    delete(world, "c")
    assert mig("release", "c").code == 0
    assert not exists(world, "c")


def test_a_claim_that_is_not_deleted_is_free_again(world: World, mig: Mig) -> None:
    allocated(world, node="node-gone")
    assert mig("release", "c").code == 0
    found = world.api.get(RESOURCE_CLAIMS, "c", namespace="default")
    assert not (found.get("status") or {}).get("allocation")
    assert finalizers(world, "c") == []


def test_a_node_that_shows_nothing_of_a_claim_does_not_hold_it(world: World, mig: Mig) -> None:
    world.add_node("node-a")
    allocated(world)
    delete(world, "c")
    assert mig("release", "c").code == 0
    assert not exists(world, "c")


# -- what stays


def reserved(world: World) -> None:
    world.add_node("node-a")
    allocated(world, pod_name="trainer")
    delete(world, "c")


def on_the_node(world: World) -> None:
    world.add_node("node-a")
    made = allocated(world)
    show_instance(world, made["metadata"]["uid"], "reclaiming", "in use by process 4711")


def left_on_the_node(world: World) -> None:
    world.add_node("node-a")
    made = world.add_claim("c")
    world.set_finalizers("c")
    show_instance(world, made["metadata"]["uid"])


def without_mignode(world: World) -> None:
    world.add_bare_node("node-a")
    allocated(world)


def unreadable(world: World) -> None:
    world.add_node("node-a")
    allocated(world)
    found = world.api.get(MIG_NODES, "node-a")
    card = {
        "name": "gpu-0",
        "uuid": "u",
        "migMode": {"enabled": True, "pending": True},
        "instances": [{"placement": {"start": 40, "size": 40}, "state": "lost"}],
    }
    world.set_status(MIG_NODES, found, {**found["status"], "gpus": [card]})


KEPT: list[tuple[Callable[[World], None], str, bool]] = [
    (reserved, "in use by pod trainer", False),
    (
        on_the_node,
        "node-a gpu-0 still has its 1g.5gb at 0:1, reclaiming: in use by process 4711",
        True,
    ),
    (left_on_the_node, "node-a gpu-0 still has its 1g.5gb at 0:1, prepared", True),
    (without_mignode, "its node node-a has no MigNode that shows it gone", True),
    (unreadable, "the MigNode of its node node-a cannot be read", True),
]


@pytest.mark.parametrize(
    ("build", "says", "forcible"), KEPT, ids=lambda v: getattr(v, "__name__", "-")
)
def test_what_holds_a_claim_is_named_and_only_a_nodes_word_can_be_overruled(
    world: World, mig: Mig, build: Callable[[World], None], says: str, *, forcible: bool
) -> None:
    build(world)
    ran = mig("release", "c")
    assert (ran.code, ran.out.splitlines()[0]) == (1, f"default/c  kept: {says}")
    assert ("--force releases" in ran.out) is forcible
    assert finalizers(world, "c") == [FINALIZER]
    assert mig("release", "c", "--force").code == (0 if forcible else 1)
    assert finalizers(world, "c") == ([] if forcible else [FINALIZER])


def test_whoever_changes_a_claim_meanwhile_wins(
    world: World, mig: Mig, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add_claim("c")
    world.set_finalizers("c")
    patch = KubeApi.patch

    def raced(api: KubeApi, *args: Any, **fields: Any) -> Any:
        patch(
            world.api,
            RESOURCE_CLAIMS,
            "c",
            {"metadata": {"labels": {"a": "b"}}},
            namespace="default",
        )
        return patch(api, *args, **fields)

    monkeypatch.setattr(KubeApi, "patch", raced)
    ran = mig("release", "c")
    assert (ran.code, ran.out) == (1, "default/c  kept: it has just changed; try again\n")
    assert finalizers(world, "c") == [FINALIZER]


# -- which are meant


def test_all_takes_those_with_the_finalizer_and_leaves_what_is_in_use(
    world: World, mig: Mig
) -> None:
    world.add_node("node-a")
    allocated(world, pod_name="trainer")
    for name in ("a", "b"):
        world.add_claim(name)
        world.set_finalizers(name)
    world.add_claim("foreign")
    world.set_finalizers("foreign", "other.example/allocation")
    ran = mig("release", "--all", "--dry-run")
    assert ran.code == 1
    assert ran.out.splitlines() == [
        "default/a  would be released",
        "default/b  would be released",
        "default/c  kept: in use by pod trainer",
    ]
    assert finalizers(world, "a") == [FINALIZER]
    ran = mig("release", "--all")
    assert ran.out.splitlines()[:2] == ["default/a  released", "default/b  released"]
    assert finalizers(world, "a") == []
    assert finalizers(world, "c") == [FINALIZER]
    assert finalizers(world, "foreign") == ["other.example/allocation"]


def test_other_namespaces_are_taken_only_if_meant(world: World, mig: Mig) -> None:
    world.add_claim("c")
    world.set_finalizers("c")
    assert (
        f"no such claim has finalizer {DRIVER}/allocation"
        in mig("release", "--all", "-n", "elsewhere").out
    )
    assert finalizers(world, "c") == [FINALIZER]
    assert mig("release", "--all", "-A", "-n", "elsewhere").code == 0
    assert finalizers(world, "c") == []


def test_a_name_that_is_not_there_stops_all(world: World, mig: Mig) -> None:
    world.add_claim("c")
    world.set_finalizers("c")
    ran = mig("release", "c", "gone")
    assert (ran.code, ran.err) == (4, "kubectl mig: namespace default has no claim 'gone'\n")
    assert finalizers(world, "c") == [FINALIZER]


@pytest.mark.parametrize("line", [[], ["c", "--all"], ["c", "-A"], ["-A"]], ids=" ".join)
def test_it_must_be_said_which_claims(mig: Mig, line: list[str]) -> None:
    assert mig("release", *line).code == 2


def test_it_works_without_the_driver_being_installed(
    world: World, mig: Mig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The definition of MigNodes may be gone with it."""
    world.add_bare_node("node-a")
    allocated(world, node="node-gone")
    listed = KubeApi.list

    def without_mignodes(api: KubeApi, resource: Any, **fields: Any) -> Any:
        if resource == MIG_NODES:
            raise ObjectNotFoundError(
                "the server could not find the requested resource", status=404
            )
        return listed(api, resource, **fields)

    monkeypatch.setattr(KubeApi, "list", without_mignodes)
    assert mig("release", "c").code == 0
