"""Claims of the mirrored cluster, and the devices that the fleet counts as theirs."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from controller.cluster.decoder import Decoder, ParsedSpecs
from controller.cluster.records import ClaimRecord, Effects, TakenBack, Writing
from dra.allocator.fleet import Fleet
from dra.claims.allocation import Allocation
from dra.claims.claims import Claim, classed, read_claim
from dra.claims.otherdevices import OtherDevices
from dra.claims.reader import KnownClaim
from dra.common.resources import RESOURCE_CLAIMS, Obj, ObjectKey
from dra.gpu.inventory import ClaimRef
from dra.kube.reflector import Reflector


class KnownClaims:
    """Claims by name and by UID, with their records."""

    def __init__(
        self,
        fleet: Fleet,
        finalizer: str,
        effects: Effects,
        specs: ParsedSpecs,
        *,
        others: OtherDevices,
    ) -> None:
        self.by_key: dict[ObjectKey, KnownClaim] = {}
        self._fleet = fleet
        self.finalizer = finalizer
        self._effects = effects
        self._specs = specs
        self._others = others
        self._decoder = Decoder(RESOURCE_CLAIMS, fleet.driver)
        self.key_of_uid: dict[str, ObjectKey] = {}
        self.records: dict[str, ClaimRecord] = {}

    def record(self, claim: ClaimRef) -> ClaimRecord:
        """The record of a claim; a missing one is made, and kept unless the claim is gone."""
        known = self.records.get(claim.uid)
        if known is None:
            known = ClaimRecord(claim)
            if claim.uid in self.key_of_uid:
                self.records[claim.uid] = known
        return known

    def set(self, obj: Obj, *, rewound: bool = False) -> bool:
        """Take a claim's state; returns False if it is old: neither ``rewound`` nor newer."""
        metadata = obj["metadata"]
        key = (metadata["namespace"], metadata["name"])
        known = self.by_key.get(key)
        if known is not None and known.claim.ref.uid != metadata["uid"]:
            self.remove(key)
            known = None
        is_old = known is not None and not newer(_version(obj), known.claim.resource_version)
        if is_old and not rewound:
            return False
        claim = read_claim(obj, self._specs.requests)
        self.by_key[key] = KnownClaim(claim, obj)
        self.key_of_uid[claim.ref.uid] = key
        self._account(known.claim if known else None, claim)
        self._account_others(known.claim.allocation if known else None, claim.allocation)
        self._effects.claims.add(key)
        return True

    def remove(self, key: ObjectKey) -> bool:
        """Forget a claim; returns False if it was not known."""
        known = self.by_key.pop(key, None)
        if known is None:
            return False
        uid = known.claim.ref.uid
        self.key_of_uid.pop(uid, None)
        record = self.records.pop(uid, None)
        writing = record.writing if record is not None else None
        self._release(uid, known.claim.allocation or (writing.allocation if writing else None))
        self._account_others(known.claim.allocation, None)
        return True

    def begin_write(self, claim: ClaimRef, allocation: Allocation | None) -> None:
        known = self.by_key.get(claim.key)
        if allocation is not None and known is not None:
            allocation = classed(allocation, known.claim.requests)
        self.record(claim).writing = Writing(allocation)
        if allocation is not None:
            self._fleet.hold(claim, allocation)

    def end_write(self, claim: ClaimRef) -> bool:
        """Note the end of a write; returns True if the written allocation counts no longer."""
        writing, known = self._writing(claim.uid), self.by_key.get(claim.key)
        if writing is None:
            return False
        self.record(claim).writing, allocation = None, writing.allocation
        if allocation is None or known is None or known.claim.allocation is not None:
            return False
        self._release(claim.uid, allocation)
        return True

    def read(self, obj: Obj) -> Claim:
        """The claim in an answer of the API server, read like a mirrored one."""
        return read_claim(self._kept(obj), self._specs.requests)

    def news(self, obj: Obj) -> Obj | None:
        """The kept part of a write's answer; None if the claim is gone or a newer is known."""
        metadata = obj["metadata"]
        known = self.by_key.get((metadata["namespace"], metadata["name"]))
        if known is None or known.claim.ref.uid != metadata["uid"]:
            return None
        if not newer(_version(obj), known.claim.resource_version):
            return None
        return self._kept(obj)

    def _kept(self, obj: Obj) -> Obj:
        return self._decoder(msgspec.Raw(msgspec.json.encode(obj)))

    def node_of(self, keys: Iterable[ObjectKey], consumer: str = "") -> str:
        """Node of the first claim that is allocated or is being written; empty without one.

        ``consumer``: a pod's UID; allocated claims that are not reserved for that pod are skipped.
        """
        for key in keys:
            known = self.by_key.get(key)
            if known is None:
                continue
            claim, held = known.claim, known.claim.allocation
            if held is None:
                writing = self._writing(claim.ref.uid)
                held = writing.allocation if writing is not None else None
            elif consumer and all(each.uid != consumer for each in claim.reserved_for):
                continue
            if held is not None and held.node:
                return held.node
        return ""

    def keys_of(self, uids: Iterable[str]) -> list[ObjectKey]:
        return [self.key_of_uid[uid] for uid in uids if uid in self.key_of_uid]

    def touch(self, uids: Iterable[str]) -> None:
        self._effects.claims.update(self.keys_of(uids))

    def latest_allocations(self, count: int) -> list[Allocation]:
        latest = sorted(
            (known.obj["status"]["allocation"].get("allocationTimestamp") or "", key)
            for key, known in self.by_key.items()
            if known.claim.allocation is not None
        )[-count:]
        found = (self.by_key[key].claim.allocation for _, key in latest)
        return [allocation for allocation in found if allocation is not None]

    def _account(self, before: Claim | None, claim: Claim) -> None:
        """Count a claim's allocation in the fleet, and note one that somebody took back."""
        allocation, uid, driver = claim.allocation, claim.ref.uid, self._fleet.driver
        if allocation is not None and allocation.of_driver(driver):
            if before is None or before.allocation != allocation:
                self._fleet.hold(claim.ref, allocation)
            return
        held = before.allocation if before is not None else None
        writing = self._writing(uid)
        if writing is None or writing.allocation is None:
            self._release(uid, held)
        by_us = writing is not None and writing.allocation is None
        others = before is not None and before.by_others(driver)
        if held is None or others or not held.of_driver(driver) or by_us or claim.deleting:
            return
        if self.finalizer in claim.finalizers:
            self._effects.taken_back.append(TakenBack(claim.ref.key, held.node))

    def _writing(self, uid: str) -> Writing | None:
        record = self.records.get(uid)
        return record.writing if record is not None else None

    def _account_others(self, before: Allocation | None, after: Allocation | None) -> None:
        if before != after and self._others.exchange(before, after) and before is not None:
            self._effects.others.add(before.node)

    def _release(self, uid: str, held: Allocation | None) -> None:
        """Stop counting a claim in the fleet; ``held``: its allocation, None if unknown."""
        if not self._fleet.release(uid):
            return
        self._effects.quota = self._effects.quota or bool(self._fleet.quotas.limits)
        self._effects.room.add(held.node if held is not None else "")


def newer(version: str, known: str) -> bool:
    """True if the resourceVersion ``version`` is later than ``known``."""
    if version.isdigit() and known.isdigit():
        return int(version) > int(known)
    return version != known


def _version(obj: Obj) -> str:
    return str(obj["metadata"].get("resourceVersion") or "")


MOST_UNNAMED = 1024
"""Claims of a namespace that are kept though no pod names them: 2.4 KiB each.

Each claim beyond these takes a request of its own once a pod names it.
"""

_log = logging.getLogger(__name__)


class UnnamedClaims:
    """Claims that no pod names and that hold nothing: a tenant may make any number of them.

    Of each namespace only so many are kept. What is beyond is left out of the ``mirror`` of claims,
    None where there is none, and read again once a pod names it.
    """

    def __init__(self, mirror: Reflector | None) -> None:
        self._mirror = mirror
        self._of: dict[str, set[str]] = {}
        self._crowded: set[str] = set()

    def admit(self, key: ObjectKey, obj: Obj) -> bool:
        """Take a claim that no pod names; returns False if it is to be left out."""
        namespace, name = key
        names = self._of.setdefault(namespace, set())
        if name in names or len(names) < MOST_UNNAMED:
            names.add(name)
            return True
        if namespace not in self._crowded:
            self._crowded.add(namespace)
            _log.info(
                "claims that no pod names are read again once one does",
                extra={"namespace": namespace, "kept": MOST_UNNAMED},
            )
        if self._mirror is not None:
            self._mirror.store.leave_out(obj)
        return False

    def discard(self, key: ObjectKey) -> None:
        """Take a claim that is gone, or that a pod names."""
        namespace, name = key
        if (names := self._of.get(namespace)) is not None:
            names.discard(name)
            if not names:
                del self._of[namespace]

    def remove_namespace(self, name: str) -> None:
        """Take a namespace that is gone, and with it what was left out."""
        self._crowded.discard(name)

    def find(self, key: ObjectKey) -> None:
        """Have a claim read that is not known, if it may have been left out."""
        if key[0] in self._crowded and self._mirror is not None:
            self._mirror.recall(key[1], key[0])
