"""Record of decisions for ``kubectl mig replay``: the GPUs, the claims that waited, the choices.

The deciding thread compares the fleet with the last recorded state, and queues lines; another
thread writes them. Errors here are logged and cost lines, never a decision. Names of pods and
namespaces are left out unless asked for: hashes, keyed anew for each leadership, stand for them.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import secrets
from collections.abc import Callable, Hashable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from operator import itemgetter
from typing import NamedTuple

import msgspec

from controller import times
from controller.cluster.cluster import Cluster
from controller.cluster.records import Effects
from controller.options import Options
from controller.report.decision_file import DecisionFile
from dra.allocator.fleet import Changes, NodeGpus
from dra.allocator.fragmentation import charge_of
from dra.allocator.gpustate import GpuState
from dra.allocator.problem import Decision, Problem
from dra.claims.allocation import Allocation
from dra.claims.classes import Quota
from dra.claims.wants import ClaimWants
from dra.common.cache import BoundedCache
from dra.gangs.membership import Unclear
from dra.gpu.holdings import occupant_of
from dra.gpu.inventory import ClaimRef, Gpu, IdleInstance, Instance, InstanceState, Inventory
from dra.kube.timing import Clock, rfc3339
from dra.pods.nodefit import find_barrier
from dra.pods.pods import Pod, PodNeeds
from dra.replay import form

_log = logging.getLogger(__name__)

_KINDS = 1024
"""Upper bound on the kinds of claims, and on those of pods' needs, that are remembered."""

_MICROSECONDS = 1_000_000


class _Node(NamedTuple):
    """A recorded node: its state ``seen``, its line, and the ``parts`` to find changes fast."""

    parts: object
    seen: Inventory
    line: form.NodeState


class _Held(NamedTuple):
    """A claim that holds devices, by its number and their names, in order."""

    claim: int
    devices: list[str]


class _Open(NamedTuple):
    """A question that is not answered by a placement yet, and its line."""

    asked: object
    line: form.Asked


class DecisionLog:
    """Keeper of a recording. ``now`` gives monotonic seconds. Owned by the deciding thread."""

    def __init__(
        self,
        cluster: Cluster,
        file: DecisionFile,
        *,
        now: Callable[[], float],
        begun: str,
        names: bool,
    ) -> None:
        """``begun``: the time of day (RFC 3339). ``names``: names of pods and namespaces stay."""
        self._cluster = cluster
        self._file = file
        self._now = now
        self._begun = begun
        self._names = names
        self._salt = secrets.token_bytes(16)
        self._numbers = itertools.count()
        self._began, self._last = now(), 0
        self._dropped = 0
        self._not_before: float | None = float("-inf")
        """Monotonic time before which nothing is recorded, after an error; None while recording."""
        self._due = inf
        self._observed = -1
        self._limits: dict[str, Quota] = {}
        self._held: dict[str, _Held] = {}
        self._nodes: dict[str, _Node] = {}
        self._open: dict[str, _Open] = {}
        self._alike: BoundedCache[Hashable, form.AskedClaim] = BoundedCache(_KINDS)
        self._barred: BoundedCache[PodNeeds, tuple[str, ...]] = BoundedCache(_KINDS)

    # -- what others tell

    @property
    def due(self) -> float:
        """The monotonic time at which changes are to be recorded; inf if there are none."""
        if self._not_before is not None:
            return self._not_before
        return self._due if self._cluster.fleet.changed else inf

    def note(self, effects: Effects) -> None:
        """Record that pods which waited are gone."""
        if effects.nodes & effects.labels:
            self._barred.clear()
        for record in effects.gone_pods:
            if (asked := self._open.pop(record.pod.uid, None)) is not None:
                self._leave(asked.line)

    def work(self) -> None:
        """Record changes."""
        self._guarded(self._note_state)

    def waits(self, pod: Pod, problem: Problem) -> None:
        """Record that a pod waits for the claims of ``problem``."""
        self._guarded(lambda: self._ask(pod, problem.claims, self._time()))

    def placed(
        self,
        pod: Pod,
        claims: tuple[ClaimWants, ...],
        decision: Decision,
        *,
        passed: AbstractSet[str] = frozenset(),
        without: AbstractSet[str] = frozenset(),
    ) -> None:
        """Record a decision; to be called before the ``decision`` counts in the fleet.

        ``passed``: nodes on which the pod did not fit. ``without``: UIDs of held-back devices that
        the pod was allowed to take.
        """
        self._guarded(lambda: self._placed(pod, claims, decision, passed, without))

    # -- lines

    def _guarded(self, act: Callable[[], object]) -> None:
        try:
            if self._not_before is not None and self._now() < self._not_before:
                self._dropped += 1
                return
            if self._not_before is not None or self._file.is_nearly_full:
                self._begin()
            act()
        except Exception:  # noqa: BLE001 - it may be anything, and no decision may fail for it
            _log.exception("decisions are not recorded for a while")
            self._rest()

    def _rest(self) -> None:
        self._dropped += 1
        self._not_before = self._now() + times.DECISION_LOG_AGAIN
        self._cluster.fleet.changed = None

    def _begin(self) -> None:
        """Begin a new file with the whole state."""
        fleet = self._cluster.fleet
        header = form.Header(
            version=form.VERSION,
            driver=self._cluster.driver,
            begun=self._begun,
            dropped=self._dropped if self._not_before is not None else 0,
        )
        self._not_before, self._dropped, self._observed, self._limits = None, 0, -1, {}
        self._file.begin(_line(header))
        for node in self._nodes.values():
            self._put(node.line)
        self._held.clear()
        fleet.changed = fleet.everything()
        fleet.changed.nodes |= self._nodes.keys()
        self._note_state()
        for known in self._open.values():
            self._put(known.line)
        self._put(form.Ready())
        if self._file.is_nearly_full:
            _log.warning("the state alone fills a file: have --decision-log-mib larger")
            self._rest()

    def _put(self, line: form.Line) -> None:
        if self._not_before is None and not self._file.put(_line(line)):
            self._rest()

    def _time(self) -> int:
        """Microseconds since the recording began; no two calls return the same."""
        since = int((self._now() - self._began) * _MICROSECONDS)
        self._last = max(self._last + 1, since)
        return self._last

    def _named(self, name: str) -> str:
        if self._names:
            return name
        return hashlib.blake2b(name.encode(), key=self._salt, digest_size=6).hexdigest()

    # -- the state

    def _note_state(self) -> None:
        """Record the changes of nodes since the last call."""
        fleet = self._cluster.fleet
        changed, fleet.changed = fleet.changed or Changes(), Changes()
        self._due = self._now() + times.DECISION_LOG_STATE
        if fleet.quotas.limits != self._limits:
            self._limits = {**fleet.quotas.limits}
            self._put(form.QuotaState(limits=self._limits))
        for uid in sorted(changed.claims & self._held.keys()):
            if not fleet.counts(uid):
                self._end(uid)
        for name in sorted(changed.nodes):
            if (node := fleet.nodes.get(name)) is not None:
                self._note_gpus(node)
            elif self._nodes.pop(name, None) is not None:
                self._put(form.NodeState(t=self._time(), node=name))
        for holder in filter(None, map(fleet.holder, sorted(changed.claims))):
            self._note_holder(*holder)
        if fleet.demand.observed != self._observed:
            self._observed = fleet.demand.observed
            self._put(form.DemandState(counts=fleet.demand.counts))

    def _note_gpus(self, node: NodeGpus) -> None:
        name, inventory = node.inventory.node, node.inventory
        parts = [(s.gpu, s.blocked, *_left(s)) for s in node.gpus], inventory.capabilities
        known = self._nodes.get(name)
        if known is not None and known.parts == parts:
            return  # the usual case, which needs no comparison of whole inventories
        seen = self._seen(node)
        line = known.line if known is not None else None
        if known is None or seen != known.seen:
            line = form.NodeState(t=self._time(), node=name, mignode=form.as_recorded(seen))
            self._put(line)
        if line is not None:
            self._nodes[name] = _Node(parts, seen, line)

    def _note_holder(self, ref: ClaimRef, allocation: Allocation) -> None:
        every = allocation.of_driver(self._cluster.driver)
        given = [(d.device, d.ask, d.class_name) for d in every if not d.admin_access]
        given.sort(key=itemgetter(0))
        names, known = [name for name, _, _ in given], self._held.get(ref.uid)
        if not given or (known is not None and known.devices == names):
            return
        if known is not None:
            self._end(ref.uid)
        self._held[ref.uid] = _Held(next(self._numbers), names)
        line = form.Held(
            t=self._time(),
            claim=self._held[ref.uid].claim,
            tenant=self._named(ref.namespace),
            node=allocation.node,
            devices=tuple(given),
            back=ref.uid.startswith("next:"),
        )
        self._put(line)

    def _end(self, uid: str) -> None:
        self._put(form.Ended(t=self._time(), claim=self._held.pop(uid).claim))

    def _seen(self, node: NodeGpus) -> Inventory:
        """A node's inventory without the claims' instances and without texts for people."""
        inventory = node.inventory
        return Inventory(
            inventory.node,
            inventory.pool,
            inventory.driver,
            tuple(map(self._seen_gpu, node.gpus)),
            driver_version=inventory.driver_version,
            cuda_driver_version=inventory.cuda_driver_version,
            capabilities=inventory.capabilities,
        )

    def _seen_gpu(self, state: GpuState) -> Gpu:
        gpu = state.gpu
        idle = (IdleInstance(i.placement, self._named(i.namespace), i.profile_id) for i in gpu.idle)
        return replace(
            gpu,
            mig_pending=gpu.mig_enabled,
            instances=tuple(_left(state)),
            unavailable="not given out" if state.blocked else "",
            reason="",
            idle=tuple(idle),
            layout=None,
            health=None,
        )

    # -- what is asked, and what comes of it

    def _placed(
        self,
        pod: Pod,
        claims: tuple[ClaimWants, ...],
        decision: Decision,
        passed: AbstractSet[str],
        without: AbstractSet[str],
    ) -> None:
        self._note_state()
        time = self._time()
        asked = self._ask(pod, claims, time)
        del self._open[pod.uid]
        numbers = {w.claim.ref: c.number for w, c in zip(claims, asked.claims, strict=True)}
        picks = [p for p in decision.picks if not p.admin]
        line = form.Placed(
            t=max(time, self._last),
            ask=asked.ask,
            node=decision.node,
            devices=tuple((numbers[p.claim], p.device) for p in picks),
            cost=charge_of(self._cluster.fleet, decision.node, (p.device for p in picks)),
            passed=tuple(sorted(passed)),
            without=tuple(self._held[u].claim for u in sorted(without) if u in self._held),
        )
        self._put(line)
        for ref, claim in numbers.items():
            if names := sorted(p.device for p in picks if p.claim == ref):
                self._held[ref.uid] = _Held(claim, names)
        if self._cluster.fleet.changed is not None:
            self._cluster.fleet.changed.claims.update(ref.uid for ref in numbers)  # it may fail

    def _ask(self, pod: Pod, claims: tuple[ClaimWants, ...], time: int) -> form.Asked:
        """The line of the pod's question; it is recorded at ``time`` unless it was before."""
        asked = tuple((w.claim.ref.uid, w.choices, w.constraints) for w in claims)
        known = self._open.get(pod.uid)
        if known is not None and known.asked == asked:
            return known.line
        if known is not None:
            self._leave(known.line)
        gang = self._cluster.gangs.find(pod.key)
        needs = self._cluster.gangs.minimum(gang) if gang is not None else 1
        line = form.Asked(
            t=time,
            ask=next(self._numbers),
            pod=self._named("/".join(pod.key)),
            tenant=self._named(pod.key[0]),
            claims=tuple(map(self._asked_claim, claims)),
            barred=self._barred_to(pod),
            priority=pod.priority,
            gang=self._named(str(gang.key)) if gang is not None else "",
            needs=1 if isinstance(needs, Unclear) else needs,
        )
        self._open[pod.uid] = _Open(asked, line)
        self._put(line)
        return line

    def _asked_claim(self, wants: ClaimWants) -> form.AskedClaim:
        kind = wants.choices, wants.constraints, tuple(wants.sharing.items())
        known = self._alike.get(kind, lambda: form.asked_claim(wants, self._named))
        return msgspec.structs.replace(known, number=next(self._numbers))

    def _leave(self, asked: form.Asked) -> None:
        self._put(form.Left(t=self._time(), ask=asked.ask))

    def _barred_to(self, pod: Pod) -> tuple[str, ...]:
        """Nodes with GPUs to which a pod cannot go, by its node selector, taints and the like."""
        if pod.node:
            return tuple(sorted(self._cluster.fleet.nodes.keys() - {pod.node}))
        return self._barred.get(pod.needs, lambda: self._find_barred(pod.needs))

    def _find_barred(self, needs: PodNeeds) -> tuple[str, ...]:
        facts = self._cluster.hosts.facts
        return tuple(
            name
            for name in sorted(self._cluster.fleet.nodes)
            if name not in facts or find_barrier(needs, facts[name]) is not None
        )


@contextmanager
def recording(cluster: Cluster, options: Options, clock: Clock) -> Iterator[DecisionLog | None]:
    """The recording of a leadership; None if the options ask for none."""
    if options.decision_log is None:
        yield None
        return
    file = DecisionFile(options.decision_log, options.decision_log_mib * 2**20)
    try:
        yield DecisionLog(
            cluster,
            file,
            now=clock.monotonic,
            begun=rfc3339(clock.now()),
            names=options.decision_log_names,
        )
    finally:
        cluster.fleet.changed = None
        file.close()


def _line(line: form.Line) -> bytes:
    return form.encode(line) + b"\n"


def _left(state: GpuState) -> Iterator[Instance]:
    """Instances that no claim holds.

    Those that the MigNode has for a claim are marked as reclaimed, the others as foreign.
    """
    geometry = state.gpu.geometry
    if not state.gpu.instances:
        return
    held = {o.placement for _, d in state.claims if (o := occupant_of(d, geometry)) is not None}
    for instance in state.gpu.instances:
        if instance.placement not in held:
            is_leaving = instance.claim is not None
            how = InstanceState.RECLAIMING if is_leaving else InstanceState.FOREIGN
            yield Instance(instance.placement, how, instance.profile_id, instance.profile)
