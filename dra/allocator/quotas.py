"""Quotas of namespaces: what each holds of the classes that have a quota, and may still have.

Slices, whole GPUs and shares of either count as a device each. Memory counts as the names of
profiles do, in whole GiB: a ``1g.10gb`` as 10 GiB, a whole GPU as its memory rounded up, a share as
the memory that it states, or else as its part of the GPU's or slice's. Devices that are only looked
at (``adminAccess``) count as nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dra.cel.kinds import Kinds
from dra.claims.allocation import AllocatedDevice, Allocation
from dra.claims.classes import DEVICES, MEMORY, Quota, quota_annotation
from dra.claims.reasons import Obstacle, Reason
from dra.claims.wants import Choices, ClaimWants, Want
from dra.common.quantity import mebibytes
from dra.gpu.holdings import held_by_claims
from dra.gpu.inventory import ClaimRef, Gpu
from dra.gpu.names import DeviceNameError, MigDevice, nominal_gigabytes, parse_device

_GIB = 1024
_UNKNOWN = 1024 * _GIB
"""MiB that a whole GPU counts as while its node has no MigNode: more than any has."""

_SHOWN = 63


class Charge(NamedTuple):
    """Devices of a class that are held, or to be held, and their memory."""

    device_class: str
    devices: int
    memory_mib: int


def charges_for(
    allocation: Allocation, gpus: Collection[Gpu], classes: Container[str], *, driver: str
) -> Iterator[Charge]:
    """The devices of ``classes`` that an allocation has on a node with ``gpus``, one by one."""
    for device in allocation.of_driver(driver):
        if device.class_name in classes and not device.admin_access:
            yield Charge(device.class_name, 1, _memory_of(device, gpus))


class Quotas:
    """Running sums by namespace and class, of classes with a quota alone. Not thread-safe.

    ``limits`` are the quotas by class; while there are none nothing is counted.
    """

    def __init__(self, driver: str, kinds: Kinds) -> None:
        self.limits: dict[str, Quota] = {}
        self._driver = driver
        self._kinds = kinds
        self._held: Counter[tuple[str, str, str]] = Counter()
        self._charges: dict[str, tuple[str, tuple[Charge, ...]]] = {}
        """By claim: its namespace, and what it holds."""
        self._left: dict[str, set[str]] = {}
        """By node: claims that count although they are not allocated, as the node has devices of
        them: whoever may delete a claim does not free its devices."""

    def limit(self, device_class: str, quota: Quota | None) -> bool:
        """Set the quota of a class, or none; returns True if all claims are to be entered anew."""
        before = self.limits.pop(device_class, None)
        if quota is not None:
            self.limits[device_class] = quota
        return (before is None) is not (quota is None)

    def enter(self, ref: ClaimRef, allocation: Allocation | None, gpus: Collection[Gpu]) -> None:
        """Count what a claim holds on a node with ``gpus``, instead of what it held before."""
        namespace, charges = self._charges.pop(ref.uid, ("", ()))
        self._add(namespace, charges, -1)
        if allocation is None or not self.limits:
            return
        if charges := tuple(self._given(allocation, gpus)):
            self._charges[ref.uid] = ref.namespace, charges
            self._add(ref.namespace, charges, 1)

    def leave(self, node: str, gpus: Iterable[Gpu], allocated: Container[str]) -> None:
        """Count what the ``gpus`` of a node have of claims that are not ``allocated`` (UIDs).

        A claim counts as what it was allocated, until the node has nothing of it; one whose
        allocation was not seen counts in each class with a quota.
        """
        there: dict[ClaimRef, list[int]] = {}
        for gpu in gpus if self.limits else ():
            for ref, instance in held_by_claims(gpu):
                if ref.uid not in allocated:
                    name = gpu.name if instance is None else instance.profile
                    size = _whole(gpu) if instance is None else nominal_gigabytes(name) * _GIB
                    there.setdefault(ref, []).append(size)
        before, now = self._left.pop(node, set()), {ref.uid for ref in there}
        for uid in before - now:
            if uid not in allocated:
                namespace, charges = self._charges.pop(uid, ("", ()))
                self._add(namespace, charges, -1)
        for ref, devices in there.items():
            if ref.uid not in before and ref.uid not in self._charges:
                each = tuple(Charge(name, 1, memory) for memory in devices for name in self.limits)
                self._charges[ref.uid] = ref.namespace, each
                self._add(ref.namespace, each, 1)
        if now:
            self._left[node] = now

    def keep(self, node: str, ref: ClaimRef) -> None:
        """Go on counting what a claim was allocated, until its ``node`` has nothing of it."""
        if self.limits:
            self._left.setdefault(node, set()).add(ref.uid)

    def without(self, claim_uids: Iterable[str]) -> Quotas:
        """The sums as they would be if these claims held nothing."""
        if not self._charges:
            return self
        supposed = Quotas(self._driver, self._kinds)
        supposed.limits, supposed._held = self.limits, self._held.copy()
        for uid in claim_uids:
            namespace, charges = self._charges.get(uid, ("", ()))
            supposed._add(namespace, charges, -1)
        return supposed

    def find_over(self, claims: Sequence[ClaimWants]) -> Obstacle | None:
        """Obstacle where ``claims`` of a pod are over a quota whatever serves them; None elsewhere.

        Raises:
            SelectorError: a selector does not compile.
            UnansweredError: a selector is still to be evaluated.
        """
        first: Obstacle | None = None
        alternatives = Choices(claims)
        for chosen in alternatives if self.limits else ():
            found = self.over(chosen)
            if found is None:
                return None
            first = first or found
        return None if alternatives.is_cut_off else first

    def over(self, claims: Sequence[ClaimWants]) -> Obstacle | None:
        """As ``find_over``, of one alternative each; the least memory that may serve counts."""
        if not self.limits or not claims:
            return None
        wants = [w for c in claims for w in c.wants if w.class_name in self.limits and not w.admin]
        asked = (Charge(w.class_name, n := _number(w), n * self._least(w)) for w in wants)
        refs = [each.claim.ref for each in claims]
        return self._about(refs, asked)

    def over_by(
        self, given: Mapping[ClaimRef, Allocation], gpus: Collection[Gpu]
    ) -> Obstacle | None:
        """Obstacle if ``given`` to a pod, on a node with ``gpus``, is over a quota; else None."""
        found = [charge for each in given.values() for charge in self._given(each, gpus)]
        return self._about([*given], found) if found else None

    def sums(self) -> Iterator[tuple[str, str, str, int]]:
        """Sums: namespace, class, ``DEVICES`` or ``MEMORY``, and devices or MiB. For any thread."""
        for (namespace, name, what), held in [
            *self._held.items()
        ]:  # a copy that no other thread interrupts
            yield namespace, name, what, held

    def _add(self, namespace: str, charges: Iterable[Charge], sign: int) -> None:
        for name, devices, memory in charges:
            for what, number in ((DEVICES, devices), (MEMORY, memory)):
                key = namespace, name, what
                self._held[key] += sign * number
                if not self._held[key]:
                    del self._held[key]

    def _about(self, refs: Sequence[ClaimRef], asked: Iterable[Charge]) -> Obstacle | None:
        """Obstacle if ``refs``, claims of a pod, may not have what is ``asked`` for them.

        What they had before does not count any more.
        """
        namespace, wanted = refs[0].namespace, _summed(asked)
        before = _summed(c for ref in refs for c in self._charges.get(ref.uid, ("", ()))[1])
        for (name, what), number in wanted.items():
            quota, shown = self.limits[name], name[:_SHOWN]
            if quota.fault:
                text = f"nothing of DeviceClass {shown!r} is allocated: its {quota.fault}"
                return Obstacle(Reason.QUOTA, text)
            limit = quota.devices if what == DEVICES else quota.memory_mib
            held = self._held[namespace, name, what] - before[name, what]
            if limit is not None and held + number > limit:
                most, has, more = (_words(what, each) for each in (limit, held, number))
                text = (
                    f"DeviceClass {shown!r} lets a namespace hold {most} at a time "
                    f"({quota_annotation(self._driver, what)}): {namespace} holds {has}, and the "
                    f"pod asks for {more}{'' if number <= limit else ', which it can never have'}"
                )
                return Obstacle(Reason.QUOTA, text)
        return None

    def _given(self, allocation: Allocation, gpus: Collection[Gpu]) -> Iterator[Charge]:
        return charges_for(allocation, gpus, self.limits, driver=self._driver)

    def _least(self, want: Want) -> int:
        """MiB that one device for ``want`` has at the least; 0 where that cannot be told."""
        if want.ask.memory_mib is not None:
            return want.ask.memory_mib
        limit = self.limits[want.class_name]
        if limit.memory_mib is None or self._kinds.tells_gpus_apart(want.expressions):
            return 0
        offers = self._kinds.offers(want.expressions)
        return min((o.gigabytes for o in offers), default=0) * _GIB


def _number(want: Want) -> int:
    """Devices that ``want`` asks for at the least."""
    return 1 if want.everything else want.count


def _summed(charges: Iterable[Charge]) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for name, devices, memory in charges:
        found[name, DEVICES] += devices
        found[name, MEMORY] += memory
    return found


def _whole(gpu: Gpu) -> int:
    """MiB that a whole GPU counts as."""
    return -(-gpu.memory_mib // _GIB) * _GIB


def _words(what: str, number: int) -> str:
    if what == MEMORY:
        return f"{mebibytes(number)} of memory"
    return f"{number} device{'' if number == 1 else 's'}"


def _memory_of(allocated: AllocatedDevice, gpus: Collection[Gpu]) -> int:
    """MiB that a device of ``gpus`` counts as."""
    if allocated.ask.memory_mib is not None:
        return allocated.ask.memory_mib
    try:
        device = parse_device(allocated.device)
    except DeviceNameError:
        return 0  # nothing of ours is called so
    name = device.gpu if isinstance(device, MigDevice) else str(device)
    gpu = next((gpu for gpu in gpus if gpu.name == name), None)
    if isinstance(device, MigDevice):
        memory = nominal_gigabytes(device.profile_label) * _GIB
        shares = gpu.slice_shares if gpu is not None and device.shared else 0
    else:
        memory = _whole(gpu) if gpu is not None else _UNKNOWN
        shares = gpu.shares if gpu is not None else 0
    return memory // (shares or 1)
