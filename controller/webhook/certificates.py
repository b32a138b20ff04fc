"""Certificates that renew themselves: each is signed by a short-lived authority of its own.

The authority's key is dropped after it has signed, so that no other certificate of that authority
can ever exist.
"""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dra.common.resources import MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS, Obj, Resource
from dra.kube.client import KubeApi
from dra.kube.errors import ConflictError, KubeError

_log = logging.getLogger(__name__)

_SKEW = dt.timedelta(minutes=5)
"""Time by which the clock of an API server may be behind ours."""

_REMAINING = 1 / 3
"""Part of a certificate's life; the certificate is replaced when less is left."""


@dataclass(frozen=True, slots=True)
class Served:
    """A certificate with its key, and the authorities to trust with it; all in PEM."""

    certificate: bytes
    key: bytes
    authorities: bytes


def make(names: Sequence[str], *, now: dt.datetime, lifetime: dt.timedelta) -> Served:
    """A new certificate for these DNS names and IP addresses, under a new authority.

    Args:
        names: DNS names and IP addresses; the first is the subject too.
        now: the time, with its zone.
        lifetime: from `now` on.
    """
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority_name = _name(f"{names[0]} authority {now:%Y-%m-%dT%H:%M:%SZ}")

    def builder(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority_name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SKEW)
            .not_valid_after(now + lifetime)
        )

    alternatives = x509.SubjectAlternativeName([_alternative(each) for each in names])
    authority = (
        builder(authority_name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        builder(_name(names[0]), key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(alternatives, critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return Served(
        certificate.public_bytes(pem),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        authority.public_bytes(pem),
    )


def renewed(
    before: Served | None,
    names: Sequence[str],
    *,
    now: dt.datetime,
    lifetime: dt.timedelta,
) -> Served:
    """The certificate to serve: ``before``, or a new one if a renewal is due.

    Former authorities stay trusted until they expire, since not every replica serves the new
    certificate at once.
    """
    if before is not None and not _due(before, names, now, lifetime):
        return before
    made = make(names, now=now, lifetime=lifetime)
    old = before.authorities if before is not None else b""
    return Served(made.certificate, made.key, made.authorities + _valid(old, now))


def _due(served: Served, names: Sequence[str], now: dt.datetime, lifetime: dt.timedelta) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(served.certificate)
        serialization.load_pem_private_key(served.key, None)
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return True
    left = certificate.not_valid_after_utc - now
    return set(found) != {_alternative(n) for n in names} or left < lifetime * _REMAINING


def _valid(authorities: bytes, now: dt.datetime) -> bytes:
    try:
        found = x509.load_pem_x509_certificates(authorities) if authorities else []
    except ValueError:
        return b""
    kept = [each for each in found if each.not_valid_after_utc > now]
    return b"".join(each.public_bytes(serialization.Encoding.PEM) for each in kept)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


_CERTIFICATE, _KEY, _AUTHORITIES = "tls.crt", "tls.key", "ca.crt"
_MOST_SECONDS_BETWEEN_LOOKS = 60.0
_LOOKS_IN_A_LIFE = 20


@dataclass(frozen=True, slots=True)
class Place:
    """Names of the objects with the certificate.

    ``namespace``, ``secret``: the Secret, which must exist.
    ``configuration``: the ValidatingWebhookConfiguration.
    ``mutating``: the MutatingWebhookConfiguration; empty if there is none.
    """

    namespace: str
    secret: str
    configuration: str
    mutating: str = ""


class Keeper:
    """Keeps Secret and configurations up to date; each look reads all anew, for other replicas.

    Args:
        api: may read and update the Secret, and read and patch the configurations.
        place: names of the Secret and the configurations.
        names: DNS names and IP addresses of the server.
        lifetime: the time for which a certificate is valid.
        serve: called with a certificate to serve, after the API server was told to trust it.
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
                return  # its certificate is read at the next look
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
    """The certificate in the Secret; None if it is empty or damaged, so that a new one is made."""
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
