"""Keeper of the certificate in a Secret that all replicas share, and of its authorities."""

from __future__ import annotations

import base64
import datetime as dt
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controller.webhook.certificates import Served, renewed
from dra.common.resources import MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS, Obj, Resource
from dra.kube.client import KubeApi
from dra.kube.errors import ConflictError, KubeError

_log = logging.getLogger(__name__)
_CERTIFICATE, _KEY, _AUTHORITIES = "tls.crt", "tls.key", "ca.crt"
_MOST_SECONDS_BETWEEN_LOOKS = 60.0
_LOOKS_IN_A_LIFE = 20


@dataclass(frozen=True, slots=True)
class Place:
    """Places where things are kept: a Secret that exists, and configurations of webhooks.

    ``mutating`` is empty where there is none of that kind.
    """

    namespace: str
    secret: str
    configuration: str
    mutating: str = ""


class Keeper:
    """Keeps Secret and configurations up to date; reads all anew each time, as several may run.

    Args:
        api: may read and update the Secret, and read and patch the configurations.
        place: where Secret and configurations are.
        names: DNS names and IP addresses of the server.
        lifetime: for which a certificate is valid.
        serve: takes a certificate into use, after the API server was told to trust it.
        now: the time, with its zone.
    """

    def __init__(  # noqa: PLR0913 - each is a part of what is kept together
        self,
        api: KubeApi,
        place: Place,
        *,
        names: Sequence[str],
        lifetime: dt.timedelta,
        serve: Callable[[Served], None],
        now: Callable[[], dt.datetime],
    ) -> None:
        self._api = api
        self._place = place
        self._names = names
        self._lifetime = lifetime
        self._serve = serve
        self._now = now
        self._serving: Served | None = None
        self._between = min(
            _MOST_SECONDS_BETWEEN_LOOKS, lifetime.total_seconds() / _LOOKS_IN_A_LIFE
        )

    def run(self, stop: threading.Event) -> None:
        """Looks until ``stop`` is set; failures are logged and the next look tries again."""
        while not stop.is_set():
            try:
                self.look()
            except KubeError as error:
                _log.warning("cannot keep the webhook's certificate: %s", error)
            stop.wait(self._between)

    def look(self) -> None:
        """Renews the certificate where it is due, and serves what is in the Secret.

        Raises:
            KubeError: the Secret or a configuration cannot be read or written.
        """
        place = self._place
        secret = self._api.get(SECRETS, place.secret, namespace=place.namespace)
        before = _from_secret(secret)
        served = renewed(before, self._names, now=self._now(), lifetime=self._lifetime)
        if served != before:
            try:
                self._api.replace(SECRETS, {**secret, "data": _data(served)})
            except ConflictError:  # another replica was faster
                return  # what it made is read at the next look
            else:
                _log.info("made a new certificate for %s", ", ".join(self._names))
        self._trust(served, VALIDATING_WEBHOOKS, place.configuration)
        if place.mutating:
            self._trust(served, MUTATING_WEBHOOKS, place.mutating)
        if served != self._serving:
            self._serve(served)
            self._serving = served

    def _trust(self, served: Served, resource: Resource, name: str) -> None:
        found = self._api.get(resource, name)
        bundle = base64.b64encode(served.authorities).decode()
        hooks = found.get("webhooks") or []
        if all(each["clientConfig"].get("caBundle") == bundle for each in hooks):
            return
        changes = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": _version(found)},
            *(
                {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": bundle}
                for index in range(len(hooks))
            ),
        ]
        self._api.patch(resource, name, changes, content="json")


def _version(obj: Obj) -> str:
    return str(obj["metadata"]["resourceVersion"])


def _from_secret(secret: Obj) -> Served | None:
    """None while it is empty or is not what was written: then a new one is made."""
    data = secret.get("data") or {}
    try:
        certificate, key, authorities = (
            base64.b64decode(data[each], validate=True)
            for each in (_CERTIFICATE, _KEY, _AUTHORITIES)
        )
    except (KeyError, ValueError):
        return None
    return Served(certificate, key, authorities)


def _data(served: Served) -> dict[str, str]:
    parts = {_CERTIFICATE: served.certificate, _KEY: served.key, _AUTHORITIES: served.authorities}
    return {name: base64.b64encode(part).decode() for name, part in parts.items()}
