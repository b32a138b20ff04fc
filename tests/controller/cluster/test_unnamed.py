"""Thousands of claims that no pod names: few are kept, and any of them once a pod names it."""

from __future__ import annotations

from typing import cast

from controller.cluster.claims import MOST_UNNAMED
from controller.cluster.cluster import Cluster
from dra.cel.kinds import Kinds
from dra.cel.selectors import Selectors
from dra.common.resources import RESOURCE_CLAIMS, Obj
from dra.kube.reflector import Reflector, Store
from tests.controller.helpers.objects import DRIVER, FINALIZER, allocated, claim, pod, versioned
from tests.controller.helpers.stored import Stored

MANY = 2 * MOST_UNNAMED


class Mirrored:
    """A cluster, and the mirror of its claims."""

    def __init__(self) -> None:
        self.store = Store()
        self.recalled: list[tuple[str, str]] = []
        self._decode = Stored(RESOURCE_CLAIMS)
        self.cluster = Cluster(
            DRIVER, FINALIZER, Kinds(Selectors()), claims_mirror=cast("Reflector", self)
        )

    def recall(self, name: str, namespace: str = "") -> None:
        self.recalled.append((namespace, name))

    def see(self, body: Obj) -> None:
        for change in self.store.put(self._decode(body)):
            self.cluster.apply(RESOURCE_CLAIMS, change)

    @property
    def kept(self) -> int:
        assert len(self.store) == len(self.cluster.claims)
        return len(self.store)


def test_of_claims_that_no_pod_names_few_are_kept_of_each_namespace() -> None:
    mirrored = Mirrored()
    for n in range(MANY):
        mirrored.see(claim(f"c{n}"))
    assert mirrored.kept == MOST_UNNAMED
    assert len(mirrored.cluster.claim_index.key_of_uid) == MOST_UNNAMED
    other = claim("c")
    other["metadata"]["namespace"] = "another"
    mirrored.see(other)
    assert ("another", "c") in mirrored.cluster.claims
    for change in mirrored.store.remove(mirrored.store.list()[0]):
        mirrored.cluster.apply(RESOURCE_CLAIMS, change)
    mirrored.see(claim("next"))
    assert ("default", "next") in mirrored.cluster.claims, "what is gone counts no more"


def test_claims_that_only_others_keep_from_ending_are_no_exception() -> None:
    mirrored = Mirrored()
    for n in range(MANY):
        ending = claim(f"c{n}")
        ending["metadata"] |= {
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": ["tenant.example.com/keep"],
        }
        mirrored.see(ending)
    assert mirrored.kept == MOST_UNNAMED


def test_claims_whose_pods_are_gone_are_no_exception() -> None:
    mirrored = Mirrored()
    for n in range(MANY):
        mirrored.cluster.set_pod(versioned(pod(f"p{n}", f"c{n}")))
        mirrored.see(claim(f"c{n}"))
    assert mirrored.kept == MANY
    for n in range(MANY):
        mirrored.cluster.remove_pod(("default", f"p{n}"))
    assert mirrored.kept == MOST_UNNAMED


def test_what_holds_something_is_named_or_is_to_end_is_kept() -> None:
    mirrored = Mirrored()
    mirrored.cluster.set_pod(versioned(pod("p", "named")))
    for n in range(MANY):
        mirrored.see(claim(f"c{n}"))
    ending = claim("ending")
    ending["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [FINALIZER]}
    for body in (
        claim("named"),
        allocated(claim("held"), "node-a", "gpu-0-mig-1g5gb-19-4"),
        ending,
    ):
        mirrored.see(body)
        assert ("default", body["metadata"]["name"]) in mirrored.cluster.claims
    assert mirrored.kept == MOST_UNNAMED + 3
    assert not mirrored.recalled


def test_a_claim_that_was_left_out_is_read_once_a_pod_names_it() -> None:
    mirrored = Mirrored()
    mirrored.cluster.set_pod(versioned(pod("early", "none")))
    assert mirrored.recalled == [], "none was left out yet: it does not exist"
    for n in range(MANY):
        mirrored.see(claim(f"c{n}"))
    late = f"c{MANY - 1}"
    mirrored.cluster.set_pod(versioned(pod("p", late, "c0")))
    assert mirrored.recalled == [("default", late)]
    mirrored.see(claim(late))
    assert ("default", late) in mirrored.cluster.claims
    assert mirrored.kept == MOST_UNNAMED + 1
    mirrored.cluster.remove_namespace("default")
    mirrored.cluster.set_pod(versioned(pod("next", "none")))
    assert mirrored.recalled == [("default", late)], "a namespace of that name was made anew"
