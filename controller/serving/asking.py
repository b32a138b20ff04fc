"""Questions about selectors that keep a pod from being decided, asked for it."""

from __future__ import annotations

from collections.abc import Callable

from controller.cluster.cluster import Cluster
from controller.queue.overtaking.fairness import WaitingLine
from controller.serving.agenda import Agenda
from controller.serving.evaluations import TOLD_SECONDS, ClaimSelectors, Evaluations
from controller.serving.waiting import Waiting
from dra.cel.offers import Question, UnansweredError
from dra.claims.reader import Reader
from dra.pods.pods import Pod


class Asking:
    """Asks ``evaluations``; without any the kinds of the cluster have an evaluator of their own.

    ``now`` gives monotonic seconds.
    """

    def __init__(  # noqa: PLR0913 - its collaborators
        self,
        cluster: Cluster,
        reader: Reader,
        agenda: Agenda,
        *,
        evaluations: Evaluations | None,
        line: WaitingLine,
        waiting: Waiting,
        now: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._reader = reader
        self._agenda = agenda
        self._evaluations = evaluations
        self._line = line
        self._waiting = waiting
        self._now = now

    def ask(self, pod: Pod, error: UnansweredError) -> None:
        """Have evaluated what a decision for ``pod`` needs; it is made once all is answered.

        Raises:
            UnansweredError: ``error``, as nobody is there to be asked.
        """
        if self._evaluations is None:
            raise error
        claims = self._cluster.claims
        known = [claims[key].claim for key in pod.claim_keys if key in claims]
        asked = (ClaimSelectors(c.ref, self._reader.expressions(c), c.views) for c in known)
        obstacle = self._evaluations.ask(pod, asked, error.question)
        if obstacle is None:
            self._agenda.add_pod(pod.key, at=self._now() + TOLD_SECONDS)
        else:
            self._line.leaves(pod.uid)
            self._waiting.wait(pod, obstacle, [claim.ref for claim in known])

    def ask_for_all(self, question: Question) -> None:
        """Have a question about a class answered, for whoever asks next.

        Without evaluations there is none: the kinds answer by themselves.
        """
        if self._evaluations is not None:
            self._evaluations.ask_for_all(question)

    def take_answers(self) -> None:
        """Have the pods looked at that have all the answers which they waited for."""
        for key in self._evaluations.take_answers() if self._evaluations else ():
            self._agenda.add_pod(key)

    @property
    def due(self) -> float | None:
        """The monotonic time to call ``take_answers`` although no answer came, or None."""
        return self._evaluations.due if self._evaluations else None
