"""Retries of failed work after growing pauses, of which the pods are told."""

from __future__ import annotations

import logging

from controller.cluster.cluster import Cluster
from controller.queue.overtaking.fairness import WaitingLine
from controller.queue.overtaking.line import urgency
from controller.reporting.report import Reporter
from controller.serving.agenda import Agenda
from controller.writing.leader_requests import NotLeadingError, RefusedError
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import ObjectKey
from dra.kube.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    KubeError,
    ObjectNotFoundError,
    UnavailableError,
)
from dra.pods.pods import Pod

_log = logging.getLogger(__name__)

_NO_WEBHOOK = "failed calling webhook"
"""Words of the API server (500) where a webhook that has to admit a write does not answer
(``ErrCallingWebhook``)."""


class Retries:
    """Puts the keys of what failed back on the agenda.

    Both methods raise NotLeadingError if that is what went wrong.
    """

    def __init__(
        self,
        cluster: Cluster,
        reporter: Reporter,
        *,
        line: WaitingLine,
        agenda: Agenda,
    ) -> None:
        self._cluster = cluster
        self._reporter = reporter
        self._line = line
        self._pods = agenda.pods.changed
        self._claims = agenda.claims

    def retry_claim(self, key: ObjectKey, error: Exception | None) -> float:
        """Work on a claim has ended; returns the seconds until it is tried again, if it failed."""
        if error is None:
            self._claims.forget_failure(key)
            return 0.0
        self._tell(key, error, None)
        return self._claims.retry(key, 0)

    def retry_pod(self, key: ObjectKey, error: Exception | None) -> None:
        """Work for a pod has ended."""
        pod = self._cluster.pods.get(key)
        if error is not None:
            self._tell(key, error, pod)
        if error is None or pod is None:  # gone: nobody is left to fail
            self._pods.forget_failure(key)
        else:
            self._pods.retry(key, urgency(pod))

    def _tell(self, key: ObjectKey, error: Exception, pod: Pod | None) -> None:
        fields = {"key": "/".join(key), "error": str(error)}
        match error:
            case NotLeadingError():
                raise error
            case ObjectNotFoundError():
                _log.info("gone meanwhile", extra=fields)
            case RefusedError():
                self._refused(key, str(error), pod)
            case UnavailableError(message=words) if _NO_WEBHOOK not in words:
                _log.warning("write failed", extra=fields)
            case InvalidError() | ForbiddenError() | UnavailableError():
                self._refused(key, f"the API server refuses the write: {error}", pod)
            case ConflictError():
                _log.info("changed meanwhile", extra=fields)
            case KubeError():
                _log.warning("write failed", extra=fields)
            case _:
                _log.error("failed; trying again later", extra=fields, exc_info=error)
                if pod is not None:
                    self._line.leaves(pod.uid)

    def _refused(self, key: ObjectKey, message: str, pod: Pod | None) -> None:
        _log.error("write refused", extra={"key": "/".join(key), "error": message})
        if pod is not None:
            self._line.leaves(pod.uid)
            claims = [
                self._cluster.claims[k].obj for k in pod.claim_keys if k in self._cluster.claims
            ]
            self._reporter.waiting(pod, Obstacle(Reason.REFUSED, message), claims)
