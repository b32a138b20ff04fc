"""Nodes of the mirrored cluster, and their GPUs as their MigNodes tell."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from controller.cluster.effects import Effects
from controller.cluster.known_claims import KnownClaims
from dra.allocator.fleet import Fleet
from dra.common.resources import Obj, at
from dra.gpu.inventory import Inventory
from dra.gpu.mignode import from_mignode
from dra.pods.nodefit import read_node
from dra.pods.residents import Hosts

_log = logging.getLogger(__name__)

_SHOWN = 500
"""Characters of what is wrong with a MigNode that are told."""


@dataclass(frozen=True, slots=True)
class SpecReservations:
    """Value of ``spec.reservations`` in a ``version`` of a MigNode, as it stands there."""

    version: str
    fields: list[Obj]

    @classmethod
    def of(cls, obj: Obj) -> SpecReservations:
        """Those of a MigNode object."""
        version = str(at(obj, "metadata", "resourceVersion", default=""))
        return cls(version, [*at(obj, "spec", "reservations")])

    @property
    def claims(self) -> frozenset[str]:
        """UIDs of the claims that they are for."""
        return frozenset(str(at(each, "claim", "uid", default="")) for each in self.fields)


class KnownNodes:
    """Keeps ``hosts`` and ``fleet`` up to what Nodes and MigNodes say.

    ``inventories`` are those of all nodes of the driver, whoever allocates their GPUs,
    ``reservations`` what their MigNodes reserve, ``unreadable`` why a MigNode is left out.
    """

    def __init__(self, fleet: Fleet, hosts: Hosts, claims: KnownClaims, effects: Effects) -> None:
        self.inventories: dict[str, Inventory] = {}
        self.reservations: dict[str, SpecReservations] = {}
        self.unreadable: dict[str, str] = {}
        self._fleet = fleet
        self._hosts = hosts
        self._claims = claims
        self._effects = effects

    def set_node(self, obj: Obj) -> bool:
        """A Node was added or changed; False if nothing about it that matters was."""
        facts = read_node(obj)
        if not self._hosts.set_node(facts):
            return False
        self._effects.nodes.add(facts.name)
        self._effects.labels.add(facts.name)
        self._effects.room.add(facts.name)
        return True

    def remove_node(self, name: str) -> None:
        """A Node is gone."""
        self._hosts.drop_node(name)
        self._claims.touch(self._claims_on(name))

    def set_mignode(self, obj: Obj) -> frozenset[str]:
        """A MigNode was added or changed; one that cannot be read is as good as gone.

        Returns the UIDs of claims for which kubelet may now have to ask again, or of whose
        reservations something came.
        """
        name = obj["metadata"]["name"]
        try:
            inventory = from_mignode(obj)
            before, offered = self._fleet.instance_claims(name), self._offered(name)
            if self._fleet.set_inventory(inventory):
                self._effects.room.add(name)
        except Exception as error:  # noqa: BLE001 - whatever it says, other nodes notice nothing
            _log.warning("MigNode %s is left out: %s", name, error)
            self.remove_mignode(name)
            self.unreadable[name] = f"{type(error).__name__}: {error}"[:_SHOWN]
            return frozenset()
        self.unreadable.pop(name, None)
        if self._offered(name) != offered:
            self._effects.classes = True
        after = self._fleet.instance_claims(name)
        if before is None:
            self._claims.touch(self._fleet.claims_on(name))
        else:
            self._claims.touch(before - (after or frozenset()))
        answered = self._answered(inventory, obj)
        return self._asked_in_vain(inventory) | answered

    def remove_mignode(self, name: str) -> None:
        """A MigNode is gone."""
        self.unreadable.pop(name, None)
        touched, offered = self._claims_on(name), self._offered(name)
        self._fleet.drop_inventory(name)
        self.inventories.pop(name, None)
        self.reservations.pop(name, None)
        self._effects.reserved.add(name)
        self._effects.labels.add(name)
        if self._offered(name) != offered:
            self._effects.classes = True
        self._claims.touch(touched)

    def _answered(self, inventory: Inventory, obj: Obj) -> frozenset[str]:
        """UIDs of the claims whose reservations the node may just have answered."""
        if inventory.driver != self._fleet.driver:
            return frozenset()
        name, reserved = inventory.node, SpecReservations.of(obj)
        before, self.reservations[name] = self.reservations.get(name), reserved
        if reserved.fields != (before.fields if before is not None else []):
            self._effects.reserved.add(name)
        known = self.inventories.get(name)
        if known is not None and known.ready == inventory.ready:
            return reserved.claims if known.answers != inventory.answers else frozenset()
        return reserved.claims

    def _asked_in_vain(self, inventory: Inventory) -> frozenset[str]:
        """UIDs of the claims whose Prepare failed, or may have been cut short."""
        if inventory.driver != self._fleet.driver:
            self.inventories.pop(inventory.node, None)
            return frozenset()
        before = self.inventories.get(inventory.node)
        self.inventories[inventory.node] = inventory
        self._effects.labels.add(inventory.node)
        if inventory.failed_claims != (before.failed_claims if before else ()):
            self._effects.failures.add(inventory.node)
        if inventory.resumed and (before is None or before.resumed != inventory.resumed):
            return self._fleet.claims_on(inventory.node)
        return frozenset(f.claim.uid for f in inventory.failed_claims)

    def _offered(self, name: str) -> tuple[frozenset[str], bool]:
        """Facts that the generated classes depend on: a node's profiles, and who allocates it."""
        return self._fleet.profiles_of(name), name in self._fleet.schedulers

    def _claims_on(self, node: str) -> frozenset[str]:
        """UIDs of the claims that are allocated on a node, or that it has instances of."""
        return self._fleet.claims_on(node) | (self._fleet.instance_claims(node) or frozenset())
