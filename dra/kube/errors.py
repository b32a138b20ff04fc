"""Errors of the Kubernetes API: refusals, and requests that were never answered.

The whole tree, in one place::

    KubeError
     +-- KubeConfigError          no usable kubeconfig, service account or credential
     +-- NotServedError           the server serves no API that the driver needs
     +-- ObjectNotFoundError      404
     +-- ConflictError            409: stale resourceVersion, uid precondition
     |    +-- AlreadyExistsError  409 with reason AlreadyExists
     +-- ForbiddenError           401, 403
     +-- InvalidError             400, 422
     +-- GoneError                410: resourceVersion or continue token expired
     +-- UnavailableError         no answer, a timeout, 429, 5xx: trying again may help
     +-- TooLargeError            the answer has more bytes than are read of one

Statuses outside this list are a plain :class:`KubeError`.
"""

from collections.abc import Mapping
from typing import Any

from dra.common.resources import at

_CONFLICT = 409
_REFUSED = range(400, 500)
_TIMED_OUT = 408
_TOO_LARGE_VERSION = "ResourceVersionTooLarge"


class KubeError(Exception):
    """A request to the Kubernetes API that did not succeed.

    Attributes:
        status: HTTP status, 0 when there was no answer.
        reason: machine-readable reason of the ``metav1.Status``, such as ``Conflict``; may be "".
        message: what the server said, for people.
        details: ``details`` of the ``metav1.Status``, {} when absent.
        retry_after: seconds that the server asked to wait, None when it did not ask.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        details: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.details: dict[str, Any] = dict(details or {})
        self.retry_after = retry_after

    @property
    def is_final(self) -> bool:
        """True when the server has refused: nothing of the request can happen any more.

        Without an answer (0), and after 408 and 5xx, the request may still be on its way, or go on
        in a server that has given up waiting for it.
        """
        return self.status in _REFUSED and self.status != _TIMED_OUT

    @property
    def too_large_resource_version(self) -> bool:
        """True for 504 "Too large resource version": this server lags behind; list anew."""
        causes = at(self.details, "causes")
        return any(cause.get("reason") == _TOO_LARGE_VERSION for cause in causes)


class KubeConfigError(KubeError):
    """No usable kubeconfig, service account or credential was found."""


class NotServedError(KubeError):
    """The server serves no version of an API that the driver needs; the message has the remedy."""


class ObjectNotFoundError(KubeError):
    """404: the object, its namespace or the resource itself does not exist."""


class ConflictError(KubeError):
    """409: the object changed since it was read, or is not the one that was meant."""


class AlreadyExistsError(ConflictError):
    """409 with reason ``AlreadyExists``: the name is taken."""


class ForbiddenError(KubeError):
    """401 or 403: credentials missing or not allowed to do this."""


class InvalidError(KubeError):
    """400 or 422: the server understood and refused the content."""


class GoneError(KubeError):
    """410: the resourceVersion or continue token is too old; list anew."""


class UnavailableError(KubeError):
    """No answer, a timeout, 429 or 5xx: the same request may succeed later."""


class TooLargeError(KubeError):
    """The answer has more bytes than are read of one; it was read no further."""


_BY_STATUS: dict[int, type[KubeError]] = {
    400: InvalidError,
    401: ForbiddenError,
    403: ForbiddenError,
    404: ObjectNotFoundError,
    409: ConflictError,
    410: GoneError,
    422: InvalidError,
    429: UnavailableError,
}
_SERVER_ERROR = 500


def error_from_status(
    status: Mapping[str, Any], *, http_status: int = 0, retry_after: float | None = None
) -> KubeError:
    """Translate a ``metav1.Status`` (a refusal's body, or a watch's ERROR object).

    ``http_status`` is used when the body carries no code. ``details.retryAfterSeconds`` is used
    when ``retry_after`` is not given.
    """
    code = int(status.get("code") or http_status)
    reason = str(status.get("reason") or "")
    details = at(status, "details", default={})
    kind = _BY_STATUS.get(code, UnavailableError if code >= _SERVER_ERROR else KubeError)
    if code == _CONFLICT and reason == "AlreadyExists":
        kind = AlreadyExistsError
    elif reason in {"Expired", "Gone"}:
        kind = GoneError
    if retry_after is None and details.get("retryAfterSeconds"):
        retry_after = float(details["retryAfterSeconds"])
    return kind(
        str(status.get("message") or reason or f"the API server answered {code}"),
        status=code,
        reason=reason,
        details=details,
        retry_after=retry_after,
    )
