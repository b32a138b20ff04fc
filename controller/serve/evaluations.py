"""Evaluations of CEL that decisions need, asked of the sandbox in a fair order.

CEL is never evaluated in this process. If a decision needs an answer that is missing, its pod is
looked at again when the answers have come. One question is evaluated at a time. The next question
is of the namespace that has used the least of the sandbox's time lately: a tenant with slow
selectors waits for them, and other tenants hardly wait.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from math import inf

from controller import times
from controller.cluster.cluster import Cluster
from controller.cluster.records import Refusal
from controller.write.in_flight import Send, Senders
from dra.cel.offers import Expressions, GpuKind, Question
from dra.cel.questions import Answer, Evaluator, shortened
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import ObjectKey
from dra.gpu.inventory import ClaimRef, Gpu
from dra.pods.pods import Pod
from dra.sandbox.process import SECONDS, Sandbox, SandboxError

_log = logging.getLogger(__name__)

CLAIM_SECONDS = 4.0
"""Limit on the CPU time for all selectors of a claim, on all kinds of GPUs."""

AT_ONCE = 16
"""Upper bound on a claim's questions at a time: their cost is checked before more are asked."""

_NOBODY: ObjectKey = ("", "")
"""Asker of a question that is asked for no pod."""

_FORGOTTEN = 0.001


@dataclass(frozen=True, slots=True)
class ClaimSelectors:
    """Expressions of a claim to evaluate. ``views``: it looks at whole GPUs (``adminAccess``)."""

    ref: ClaimRef
    expressions: Collection[Expressions]
    views: bool = False


@dataclass(slots=True)
class _Waiting:
    """A pod, and the questions whose answers it waits for."""

    since: float
    keys: set[Hashable] = field(default_factory=set)


class Evaluations:
    """Questions of all namespaces. Owned by the thread that decides.

    ``send``: has another thread ask ``evaluator`` one question at a time.
    ``wake``: called by that thread when an answer has come.
    ``now``: gives monotonic seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        evaluator: Evaluator,
        *,
        send: Send,
        wake: Callable[[], None],
        now: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._kinds = cluster.fleet.kinds
        self._evaluator = evaluator
        self._send = send
        self._wake = wake
        self._now = now
        self._used: dict[str, float] = {}
        self._used_at = now()
        self._queues: dict[str, dict[Hashable, Question]] = {}
        """By namespace, the questions to be asked, by their keys."""
        self._askers: dict[Hashable, set[ObjectKey]] = {}
        self._waiting: dict[ObjectKey, _Waiting] = {}
        self._under_way = False
        self._answers: deque[tuple[str, Question, Answer | Exception]] = deque()
        self._not_before = 0.0

    def ask(self, pod: Pod, claims: Iterable[ClaimSelectors], lacking: Question) -> Obstacle | None:
        """Have the selectors evaluated that a decision for ``pod`` needs.

        ``lacking``: the question that the decision found without an answer.
        Returns an obstacle if the selectors cost too much or wait for long, else None.
        ``take_answers`` names the pod once all is answered.
        """
        now, record = self._now(), self._cluster.pod_index.record(pod)
        if record.costly is not None and now < record.costly.until:
            return record.costly.why
        found: list[Question] = []
        for asked in claims:
            open_ = [*islice(self._missing(asked), AT_ONCE)]
            if open_ and self._kinds.cost(asked.expressions) > CLAIM_SECONDS:
                obstacle = _too_much(asked.ref)
                record.costly = Refusal(obstacle, now, now + times.EVALUATION_REFUSED)
                return obstacle
            found += open_
        waiting = self._waiting.setdefault(pod.key, _Waiting(self._now()))
        for question in found or [lacking]:
            self._await(pod.key, question)
        self._go_on()
        return _LONG if self._now() >= waiting.since + times.EVALUATION_TOLD else None

    def ask_for_all(self, question: Question) -> None:
        """Have a question answered for which no pod waits, such as one about a class."""
        self._await(_NOBODY, question)
        self._go_on()

    def _await(self, asker: ObjectKey, question: Question) -> None:
        self._waiting.setdefault(asker, _Waiting(self._now())).keys.add(question.key)
        self._askers.setdefault(question.key, set()).add(asker)
        self._enqueue(asker[0], question)

    def _enqueue(self, namespace: str, question: Question) -> None:
        """Queue a question for a namespace.

        It is queued even if another namespace has asked the same, as that may be served later.
        """
        self._queues.setdefault(namespace, {}).setdefault(question.key, question)

    def _missing(self, asked: ClaimSelectors) -> Iterator[Question]:
        for expressions in dict.fromkeys(asked.expressions):
            yield from self._kinds.missing(expressions, self._gpus(views=asked.views))

    def _gpus(self, *, views: bool) -> Iterator[tuple[GpuKind, Gpu]]:
        for node in self._cluster.fleet.nodes.values():
            for state in node.gpus:
                gpu = state.gpu
                yield (self._kinds.whole(gpu, state.inventory) if views else state.kind), gpu

    def take_answers(self) -> list[ObjectKey]:
        """Take the answers that have come; returns the pods that wait for no further one."""
        ready: list[ObjectKey] = []
        while self._answers:
            namespace, question, answer = self._answers.popleft()
            self._under_way = False
            if isinstance(answer, Exception):
                _log.warning("selectors wait to be evaluated", extra={"error": str(answer)})
                self._use(namespace, SECONDS)  # so that other namespaces have their turn first
                self._enqueue(namespace, question)
                self._not_before = self._now() + times.EVALUATOR_AGAIN
                continue
            if answer.costly:
                detail = f"namespace {namespace}: {shortened(question.expressions[-1])}"
                fields = {"detail": detail, "error": answer.error}
                _log.warning("a selector takes too much", extra=fields)
            self._use(namespace, answer.cost)
            self._kinds.learn(question, answer)
            ready += self._answered(question)
        if not ready:  # otherwise those pods may ask for more first
            self._go_on()
        return ready

    @property
    def due(self) -> float:
        """The monotonic time to call ``take_answers`` if no answer comes; inf if not needed."""
        return self._not_before if self._queues and not self._under_way else inf

    def _answered(self, question: Question) -> Iterator[ObjectKey]:
        for pod in self._askers.pop(question.key, ()):
            waiting = self._waiting[pod]
            waiting.keys.discard(question.key)
            if not waiting.keys:
                del self._waiting[pod]
                if pod != _NOBODY:
                    yield pod

    def _go_on(self) -> None:
        """Have the next question answered, unless one is under way."""
        while self._queues and not self._under_way and self._now() >= self._not_before:
            namespace = self._least()
            queue = self._queues[namespace]
            question = queue.pop(next(iter(queue)))
            if not queue:
                del self._queues[namespace]
            askers = self._askers.get(question.key, ())
            if not any(pod == _NOBODY or pod in self._cluster.pods for pod in askers):
                [*self._answered(question)]  # nobody waits for it any more
                continue
            self._under_way = True
            self._send(partial(self._evaluate, namespace, question))

    def _use(self, namespace: str, seconds: float) -> None:
        self._used[namespace] = self._used.get(namespace, 0.0) + seconds

    def _least(self) -> str:
        """Of the namespaces with questions, the one that has used the least time lately."""
        now = self._now()
        left = 0.5 ** ((now - self._used_at) / times.EVALUATOR_SHARE_HALVES)
        self._used = {n: used * left for n, used in self._used.items() if used * left > _FORGOTTEN}
        self._used_at = now
        return min(self._queues, key=lambda name: self._used.get(name, 0.0))

    def _evaluate(self, namespace: str, question: Question) -> None:
        """Ask the evaluator; called by another thread."""
        answer: Answer | Exception
        try:
            answer = self._evaluator.answer(question.job)
        except SandboxError as error:
            answer = error
        self._answers.append((namespace, question, answer))
        self._wake()


@contextmanager
def evaluating(
    cluster: Cluster, *, wake: Callable[[], None], now: Callable[[], float]
) -> Iterator[Evaluations]:
    """Evaluations of ``cluster`` with a sandbox of their own."""
    sandbox, senders = Sandbox(), Senders(1)
    try:
        yield Evaluations(cluster, sandbox, send=senders.send, wake=wake, now=now)
    finally:
        sandbox.stop()  # nobody waits for its answer
        senders.close()
        sandbox.close()


_LONG = Obstacle(
    Reason.EVALUATING,
    "its selectors wait to be evaluated: those of its namespace have taken much time, or there are "
    "many new ones",
)


def _too_much(claim: ClaimRef) -> Obstacle:
    return Obstacle(
        Reason.COSTLY_SELECTOR,
        f"the selectors of claim {claim.name} take more than {CLAIM_SECONDS:g} s of CPU time "
        "together: compare attributes as they are, or put requests into claims of other pods",
    )
