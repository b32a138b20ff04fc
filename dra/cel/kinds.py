"""Kinds of GPU: the devices that one offers, before a particular GPU is chosen.

Selectors are evaluated once per kind, unless they look at what tells one GPU from another:
``questions.GpuIdentity``.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from dra.cel.celdata import DeviceData, device_data
from dra.cel.gputable import GpuTable
from dra.cel.questions import (
    Answer,
    CostlySelectorError,
    Evaluator,
    GpuIdentity,
    Job,
    SelectorError,
    shortened,
)
from dra.cel.strangers import made_up, reads_others, reads_unknown
from dra.common.cache import BoundedCache
from dra.gpu.devices import gpu_attributes, gpu_capacity, slice_attributes, slice_capacity
from dra.gpu.geometry import Geometry, Profile
from dra.gpu.inventory import Gpu, Inventory

T = TypeVar("T")
Expressions = tuple[str, ...]

_BYTES = 16 * 2**20
"""Upper bound on each of three memories of answers, with the texts that they are known by."""

_OVERHEAD = 500
"""Bytes of an answer besides its texts, roughly."""

_GPUS = 100_000
"""GPUs that are numbered; a cluster has fewer."""

_CLASSES = 2048
"""Selectors of classes of which it is remembered whether they select other drivers' devices."""

_AT_ONCE = 128
"""GPUs in one question: some ten milliseconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """Offer of a kind: a profile, or the whole GPU (``profile`` None).

    ``size`` is the profile's rank. ``shared``: several claims may have the whole GPU.
    """

    profile: Profile | None
    size: int = 0
    shared: bool = False

    @property
    def name(self) -> str:
        """The profile's name, ``gpu``, or ``share``."""
        if self.profile is None:
            return "share" if self.shared else "gpu"
        return self.profile.name


@dataclass(frozen=True, slots=True, eq=False)
class GpuKind:
    """Compared by identity: there is one object per kind.

    ``devices`` are the offers' data, of an arbitrary GPU of the kind.
    """

    product_name: str
    offers: tuple[Offer, ...]
    devices: tuple[DeviceData, ...]


@dataclass(frozen=True, slots=True)
class Match:
    """The offers that a request's selectors select. ``error`` is a selector's run-time failure.

    ``costly``: it is a failure for want of time or memory.
    """

    offers: tuple[Offer, ...]
    error: str = ""
    costly: bool = False


@dataclass(frozen=True, slots=True)
class _Costed(Generic[T]):
    """An answer, and the seconds of CPU time that it took."""

    value: T
    cost: float


_OfKind = tuple[Expressions, GpuKind]


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """Question to be answered before a decision can be made: a job for the evaluator.

    Of one expression alone, of a kind, of ``gpus`` of a kind, or of devices of other drivers than
    ``driver``. ``key`` is equal for equal questions.
    """

    expressions: tuple[str, ...]
    kind: GpuKind | None = None
    gpus: tuple[GpuIdentity, ...] = ()
    driver: str = ""

    @property
    def key(self) -> Hashable:
        """Identity of the question among others."""
        return self.expressions, self.kind, self.gpus, self.driver

    @property
    def job(self) -> Job:
        """The question as a job for an evaluator."""
        if self.driver:
            # Together, as one that does not hold outweighs another that fails.
            together = " && ".join(f"({e}\n)" for e in self.expressions)
            return Job((together,), made_up(self.expressions, self.driver))
        return Job(self.expressions, self.kind.devices if self.kind else (), self.gpus)


class UnansweredError(Exception):
    """Questions have to be evaluated first; nothing was decided."""

    def __init__(self, question: Question) -> None:
        super().__init__(f"not evaluated yet: {', '.join(map(shortened, question.expressions))}")
        self.question = question


class Kinds:
    """Tells kinds apart, and which of their offers selectors select. Not thread-safe.

    Questions whose answers are not remembered are put to ``evaluator`` there and then. Without one
    they raise UnansweredError, and ``learn`` takes the answer from whoever asked in the meantime.
    """

    def __init__(self, evaluator: Evaluator | None = None) -> None:
        self._evaluator = evaluator
        self._kinds: BoundedCache[tuple[object, ...], GpuKind] = BoundedCache(2048)
        self._facts: BoundedCache[str, Answer] = BoundedCache(_BYTES, weigh=_facts_weight)
        self._matches: BoundedCache[_OfKind, _Costed[Match]] = BoundedCache(
            _BYTES, weigh=_match_weight
        )
        self._tables: BoundedCache[Expressions, _Costed[GpuTable[Match]]] = BoundedCache(
            _BYTES, weigh=_table_weight
        )
        self._numbers: dict[tuple[GpuKind, GpuIdentity], int] = {}
        self._others: BoundedCache[tuple[Expressions, str], bool] = BoundedCache(_CLASSES)

    def of(self, gpu: Gpu, inventory: Inventory) -> GpuKind:
        """The kind of ``gpu``."""
        geometry: Geometry | None = gpu.geometry if gpu.mig_enabled else None
        key = (
            geometry,
            gpu.product_name,
            gpu.brand,
            gpu.architecture,
            gpu.cuda_compute_capability,
            gpu.memory_mib,
            gpu.multiprocessors,
            gpu.mig_enabled,
            gpu.sharing,
            inventory.driver,
            inventory.driver_version,
            inventory.cuda_driver_version,
            bool(gpu.pci_bus_id),
            bool(gpu.pcie_root),
        )
        return self._kinds.get(key, lambda: _kind(gpu, inventory))

    def whole(self, gpu: Gpu, inventory: Inventory) -> GpuKind:
        """The kind of ``gpu`` seen as a whole, whether it is in MIG mode or not."""
        return self.of(replace(gpu, mig_enabled=False, sharing=None), inventory)

    def check(self, expression: str) -> None:
        """Raise SelectorError, with the place, unless the expression compiles to a boolean.

        Raises:
            CostlySelectorError: to compile it takes more than a selector may have.
        """
        facts = self._facts_of(expression)
        if facts.error:
            raise (CostlySelectorError if facts.costly else SelectorError)(facts.error)

    def selects_others(self, expressions: Expressions, driver: str) -> bool:
        """True if ``expressions`` select devices of other drivers than ``driver``, as far as tried.

        One that fails on such a device selects it if it fails for want of what others may have, as
        ``reads_unknown`` has it.

        Raises:
            SelectorError: an expression does not compile.
        """
        found = self._others.find((expressions, driver))
        if found is not None:
            return found
        if not expressions or reads_others(expressions, driver):
            self._others.put((expressions, driver), True)
        else:
            self._ask(Question(expressions, driver=driver))
        return self.selects_others(expressions, driver)

    def tells_gpus_apart(self, expressions: Expressions) -> bool:
        """True if one of them may select differently on GPUs of one kind."""
        return any(self._facts_of(e).per_gpu for e in expressions)

    def match(self, expressions: Expressions, kind: GpuKind, gpu: Gpu) -> Match:
        """Offers of ``gpu``, which is of ``kind``, that all ``expressions`` select.

        Raises:
            SelectorError: an expression does not compile.
        """
        if not self.tells_gpus_apart(expressions):
            return self.match_kind(expressions, kind)
        self._forget_numbers()
        identity = _identity(gpu)
        known = self._tables.find(expressions)
        found = known.value.get(self._number(kind, identity)) if known is not None else None
        if found is None:
            self._ask(Question(expressions, kind, (identity,)))
            return self.match(expressions, kind, gpu)
        return found

    def match_kind(self, expressions: Expressions, kind: GpuKind) -> Match:
        """Offers of any GPU of ``kind`` that all ``expressions``, which tell none apart, select.

        Raises:
            SelectorError: an expression does not compile.
        """
        found = self._matches.find((expressions, kind))
        if found is None:
            self._ask(Question(expressions, kind))
            return self.match_kind(expressions, kind)
        return found.value

    def selected(self, expressions: Expressions) -> Hashable:
        """Equal for expressions that select the same of every GPU.

        Raises:
            SelectorError: an expression does not compile.
        """
        if self.tells_gpus_apart(expressions):
            return expressions
        return tuple(self.match_kind(expressions, kind).offers for kind in [*self._kinds.values()])

    def missing(
        self, expressions: Expressions, gpus: Iterable[tuple[GpuKind, Gpu]]
    ) -> Iterator[Question]:
        """Questions that have to be asked before ``expressions`` are matched to any of ``gpus``."""
        facts = {e: self._facts.find(e) for e in expressions}
        unknown = [e for e, found in facts.items() if found is None]
        if unknown or any(found.error for found in facts.values() if found is not None):
            yield from (Question((e,)) for e in unknown)
        elif not self.tells_gpus_apart(expressions):
            for kind in [*self._kinds.values()]:
                if self._matches.find((expressions, kind)) is None:
                    yield Question(expressions, kind)
        else:
            yield from self._missing_gpus(expressions, gpus)

    def _missing_gpus(
        self, expressions: Expressions, gpus: Iterable[tuple[GpuKind, Gpu]]
    ) -> Iterator[Question]:
        known = self._tables.find(expressions)
        lacking: dict[GpuKind, list[GpuIdentity]] = {}
        for kind, gpu in gpus:
            identity = _identity(gpu)
            if known is None or known.value.get(self._number(kind, identity)) is None:
                lacking.setdefault(kind, []).append(identity)
        for kind, found in lacking.items():
            for start in range(0, len(found), _AT_ONCE):
                yield Question(expressions, kind, tuple(found[start : start + _AT_ONCE]))

    def cost(self, asked: Collection[Expressions]) -> float:
        """Seconds of CPU time that all answers took that are known of expressions."""
        facts = [self._facts.find(e) for e in {e for expressions in asked for e in expressions}]
        tables = [self._tables.find(expressions) for expressions in asked]
        kinds = [*self._kinds.values()]
        matches = [self._matches.find((es, kind)) for es in asked for kind in kinds]
        return sum(known.cost for known in (*facts, *tables, *matches) if known is not None)

    def learn(self, question: Question, answer: Answer) -> None:
        """Take the answer to a question."""
        expressions, kind = question.expressions, question.kind
        if question.driver:
            failed = any(selected.error for selected in answer.selected)
            chosen = any(selected.devices for selected in answer.selected)
            unknown = failed and reads_unknown(expressions, question.driver)
            self._others.put((expressions, question.driver), chosen or unknown)
        elif kind is None:
            self._facts.put(expressions[0], answer)
        elif not question.gpus:
            match = self._read(kind, answer, 0)
            self._matches.put((expressions, kind), _Costed(match, answer.cost))
        else:
            self._forget_numbers()
            known = self._tables.find(expressions)
            table = known.value if known is not None else GpuTable[Match]()
            for index, identity in enumerate(question.gpus):
                number = self._number(kind, identity)
                table.put(number, self._read(kind, answer, index))
            before = known.cost if known is not None else 0.0
            self._tables.put(expressions, _Costed(table, before + answer.cost))

    def _read(self, kind: GpuKind, answer: Answer, index: int) -> Match:
        if answer.error:
            return Match((), answer.error, costly=answer.costly)
        found = answer.selected[index]
        return Match(tuple(kind.offers[n] for n in found.devices), found.error)

    def _facts_of(self, expression: str) -> Answer:
        found = self._facts.find(expression)
        if found is None:
            self._ask(Question((expression,)))
            return self._facts_of(expression)
        return found

    def _ask(self, question: Question) -> None:
        if question.kind is not None or question.driver:
            for expression in question.expressions:
                self.check(expression)
        if self._evaluator is None:
            raise UnansweredError(question)
        self.learn(question, self._evaluator.answer(question.job))

    def _forget_numbers(self) -> None:
        """Begin anew when there are many, most of GPUs that are gone. Not between uses of one."""
        if len(self._numbers) >= _GPUS:
            self._numbers.clear()
            self._tables = BoundedCache(_BYTES, weigh=_table_weight)

    def _number(self, kind: GpuKind, gpu: GpuIdentity) -> int:
        return self._numbers.setdefault((kind, gpu), len(self._numbers))


def _facts_weight(expression: str, facts: Answer) -> int:
    return _OVERHEAD + len(expression) + len(facts.error)


def _match_weight(key: _OfKind, known: _Costed[Match]) -> int:
    return _OVERHEAD + sum(map(len, key[0])) + len(known.value.error)


def _table_weight(expressions: Expressions, known: _Costed[GpuTable[Match]]) -> int:
    return _OVERHEAD + sum(map(len, expressions)) + known.value.weight


def _identity(gpu: Gpu) -> GpuIdentity:
    return GpuIdentity(gpu.uuid, gpu.pci_bus_id, gpu.pcie_root)


def describe(offer: Offer, gpu: Gpu, inventory: Inventory) -> DeviceData:
    """``offer`` of this very GPU as CEL data."""
    if offer.profile is None:
        return device_data(
            inventory.driver,
            gpu_attributes(gpu, inventory),
            gpu_capacity(gpu),
            shared=offer.shared,
        )
    return device_data(
        inventory.driver,
        slice_attributes(gpu, offer.profile, inventory),
        slice_capacity(offer.profile),
    )


def _kind(gpu: Gpu, inventory: Inventory) -> GpuKind:
    offers = tuple(_offers(gpu))
    return GpuKind(gpu.product_name, offers, tuple(describe(o, gpu, inventory) for o in offers))


def _offers(gpu: Gpu) -> Iterable[Offer]:
    if not gpu.mig_enabled:
        return [Offer(None, shared=gpu.sharing is not None)]
    profiles = gpu.geometry.profiles if gpu.geometry else ()
    return [Offer(p, p.rank) for p in profiles if p.placements]
