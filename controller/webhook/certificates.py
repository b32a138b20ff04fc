"""Certificates without renewal by hand: each is signed by a short-lived authority of its own.

The key of the authority is thrown away once it has signed, so that nothing but the certificate
that is served can ever be presented under it.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_SKEW = dt.timedelta(minutes=5)
"""Bound on how far the clock of an API server is behind ours."""

_REMAINING = 1 / 3
"""A certificate is replaced when this part of its life is left."""


@dataclass(frozen=True, slots=True)
class Served:
    """A certificate with its key, and the authorities to trust meanwhile; all in PEM."""

    certificate: bytes
    key: bytes
    authorities: bytes


def make(names: Sequence[str], *, now: dt.datetime, lifetime: dt.timedelta) -> Served:
    """A new certificate for these DNS names and IP addresses, under a new authority.

    Args:
        names: the first is its subject too.
        now: with time zone.
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
    """The certificate to serve: the one from before, or a new one where that is due.

    Authorities of before are trusted until they end, since not every replica serves the new
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
