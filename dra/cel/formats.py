"""CEL functions of IP addresses, networks, URLs and named formats, as Kubernetes has them.

Signatures follow k8s.io/apiserver/pkg/cel/library (format). A format travels as the map
``{"format": "<name>"}``. ``validate`` returns as many messages as in Kubernetes, in our own words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import date
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cel_expr_python import cel

from dra.cel.data import Opaque
from dra.cel.library import BOOL, INT, MAP, STRING, accepts, declare, function, method

Address = IPv4Address | IPv6Address

_QUERY = cel.Type.Map(cel.Type.STRING, cel.Type.List(cel.Type.STRING))


def _network() -> Iterable[Any]:
    """Declarations with their implementations."""
    yield from _addresses()
    yield from _networks()
    yield from _urls()


def _addresses() -> Iterable[Any]:
    yield declare(
        "ip",
        function(lambda text: {"ip": str(_parse_ip(text))}, MAP, STRING),
        method(lambda net: {"ip": str(_net(net)[0])}, MAP, MAP),
    )
    yield declare("isIP", function(accepts(_parse_ip), BOOL, STRING))
    yield declare("ip.isCanonical", function(lambda t: str(_parse_ip(t)) == t, BOOL, STRING))
    yield declare("family", method(lambda a: _ip(a).version, INT, MAP))
    for name, test in (
        ("isUnspecified", lambda a: a.is_unspecified),
        ("isLoopback", lambda a: a.is_loopback),
        ("isLinkLocalMulticast", _is_link_local_multicast),
        ("isLinkLocalUnicast", lambda a: a.is_link_local),
        ("isGlobalUnicast", _is_global_unicast),
    ):
        yield declare(name, method(lambda a, t=test: t(_ip(a)), BOOL, MAP))


def _networks() -> Iterable[Any]:
    yield declare("cidr", function(_cidr, MAP, STRING))
    yield declare("isCIDR", function(accepts(_parse_cidr), BOOL, STRING))
    yield declare(
        "containsIP",
        method(lambda net, text: _contains(net, _parse_ip(text)), BOOL, MAP, STRING),
        method(lambda net, address: _contains(net, _ip(address)), BOOL, MAP, MAP),
    )
    yield declare(
        "containsCIDR",
        method(lambda net, text: _covers(net, _cidr(text)), BOOL, MAP, STRING),
        method(_covers, BOOL, MAP, MAP),
    )
    yield declare("prefixLength", method(lambda net: _net(net)[1], INT, MAP))
    yield declare("masked", method(_masked, MAP, MAP))


def _urls() -> Iterable[Any]:
    yield declare("url", function(_url, MAP, STRING))
    yield declare("isURL", function(is_url, BOOL, STRING))
    yield declare("getScheme", method(lambda u: urlsplit(u["url"]).scheme, STRING, MAP))
    yield declare("getHost", method(_host, STRING, MAP))
    yield declare("getHostname", method(lambda u: urlsplit(u["url"]).hostname or "", STRING, MAP))
    yield declare("getPort", method(lambda u: str(urlsplit(u["url"]).port or ""), STRING, MAP))
    yield declare("getEscapedPath", method(lambda u: urlsplit(u["url"]).path, STRING, MAP))
    yield declare(
        "getQuery",
        method(lambda u: parse_qs(urlsplit(u["url"]).query, keep_blank_values=True), _QUERY, MAP),
    )


def _parse_ip(text: str) -> Address:
    address = ip_address(text)
    if isinstance(address, IPv6Address) and (address.ipv4_mapped or address.scope_id):
        raise ValueError(f"{text!r}: no IPv4-mapped address and no zone is allowed")
    return address


def _ip(value: Opaque) -> Address:
    if "ip" not in value:
        raise TypeError("this operand is no IP address")
    return ip_address(value["ip"])


def _parse_cidr(text: str) -> tuple[Address, int]:
    address, slash, length = text.partition("/")
    if not slash or not length.isdecimal() or (length != "0" and length.startswith("0")):
        raise ValueError(f"{text!r} is no network (such as 10.0.0.0/8)")
    parsed = _parse_ip(address)
    if int(length) > parsed.max_prefixlen:
        raise ValueError(f"{text!r}: the prefix is too long")
    return parsed, int(length)


def _cidr(text: str) -> Opaque:
    address, length = _parse_cidr(text)
    return {"cidr": f"{address}/{length}"}


def _net(value: Opaque) -> tuple[Address, int]:
    if "cidr" not in value:
        raise TypeError("this operand is no CIDR")
    return _parse_cidr(value["cidr"])


def _contains(net: Opaque, address: Address) -> bool:
    _net(net)
    return address in ip_network(net["cidr"], strict=False)


def _covers(net: Opaque, other: Opaque) -> bool:
    length = _net(other)[1]
    return _net(net)[1] <= length and _contains(net, _net(other)[0])


def _masked(net: Opaque) -> Opaque:
    _net(net)
    return {"cidr": str(ip_network(net["cidr"], strict=False))}


def _is_link_local_multicast(address: Address) -> bool:
    if address.version == 4:  # noqa: PLR2004 - the IP version
        return address in ip_network("224.0.0.0/24")
    return address.is_multicast and address.packed[1] & 0x0F == 2  # noqa: PLR2004 - the scope


def _is_global_unicast(address: Address) -> bool:
    special = address.is_unspecified or address.is_loopback or address.is_multicast
    broadcast = address == IPv4Address("255.255.255.255")
    return not (special or broadcast or address.is_link_local)


def _url(text: str) -> Opaque:
    parts = urlsplit(text)
    _ = parts.port  # raises ValueError if the port is no number
    if any(c.isspace() for c in text) or not (parts.scheme or text.startswith("/")):
        raise ValueError(f"URL parse error during conversion from string: {text[:100]!r}")
    return {"url": text}


def is_url(text: str) -> bool:
    """True if ``text`` is a URL, or an absolute path."""
    return accepts(_url)(text)


def _host(value: Opaque) -> str:
    return urlsplit(value["url"]).netloc.rpartition("@")[2]


Validate = Callable[[str], list[str]]

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL)
_DNS_1035_LABEL = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_VALUE = re.compile(rf"(?:{_NAME.pattern})?")
_UUID = re.compile(r"(?i:[0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12})")
_BASE64 = re.compile(
    r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})"
)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:.[0-9]+)?(?:z|[+-][0-9]{2}:[0-9]{2})")
_LABEL_LENGTH = 63
_SUBDOMAIN_LENGTH = 253


def functions() -> Iterable[Any]:
    """Declarations of the CEL functions, for ``cel.NewEnv``.

    ``format.named`` and ``validate`` return a list of one or none, from which the spelling of
    ``dra.cel.spelling`` makes an optional.
    """
    yield from _network()
    for name in _FORMATS:
        yield declare(f"format.{name}", function(lambda n=name: {"format": n}, MAP))
    yield declare("format.named", function(_named, cel.Type.List(MAP), STRING))
    messages = cel.Type.List(cel.Type.List(STRING))
    yield declare("validate", method(_validate, messages, MAP, STRING))


def _named(name: str) -> list[Opaque]:
    return [{"format": name}] if name in _FORMATS else []


def _validate(form: Opaque, text: str) -> list[list[str]]:
    if "format" not in form:
        raise TypeError("this operand is no format")
    wrong = _FORMATS[form["format"]](text)
    return [wrong] if wrong else []


def _of(form: re.Pattern[str], what: str, most: int | None = None) -> Validate:
    def validate(text: str) -> list[str]:
        long = most is not None and len(text.encode()) > most
        wrong = [f"must be no more than {most} bytes"] if long else []
        return wrong if form.fullmatch(text) else [*wrong, f"is no {what}"]

    return validate


def _prefix(whole: Validate) -> Validate:
    """The check of a beginning of a name, which may end in a dash."""

    def validate(text: str) -> list[str]:
        return whole(f"{text[:-2]}a" if len(text) > 1 and text.endswith("-") else text)

    return validate


def _qualified_name(text: str) -> list[str]:
    prefix, slash, name = text.rpartition("/")
    if "/" in prefix:
        return ["is no qualified name (such as example.com/my-name)"]
    wrong = [f"prefix part {w}" for w in _SUBDOMAIN_FORM(prefix)] if slash else []
    empty = [] if name else ["name part must be non-empty"]
    return [*wrong, *empty, *(f"name part {w}" for w in _NAME_FORM(name))]


def _date(text: str) -> list[str]:
    return [] if _is_date(text) else ["is no date (such as 2026-01-31)"]


def _datetime(text: str) -> list[str]:
    day, _, rest = text.lower().partition("t")
    time = _TIME.fullmatch(rest.partition("t")[0])
    good = time and time[1] <= "23" and time[2] <= "59" and time[3] <= "59"
    return [] if good and _is_date(day) else ["is no time (such as 2026-01-31T12:00:00Z)"]


def _is_date(text: str) -> bool:
    try:
        return bool(_DATE.fullmatch(text) and date.fromisoformat(text))
    except ValueError:
        return False


def _uri(text: str) -> list[str]:
    return [] if is_url(text) else ["is no URI"]


_LABEL_FORM = _of(_DNS_LABEL, "lowercase RFC 1123 label", _LABEL_LENGTH)
_LABEL_1035_FORM = _of(_DNS_1035_LABEL, "DNS-1035 label", _LABEL_LENGTH)
_SUBDOMAIN_FORM = _of(_SUBDOMAIN, "lowercase RFC 1123 subdomain", _SUBDOMAIN_LENGTH)
_NAME_FORM = _of(_NAME, "name", _LABEL_LENGTH)

_FORMATS: dict[str, Validate] = {
    "dns1123Label": _LABEL_FORM,
    "dns1123LabelPrefix": _prefix(_LABEL_FORM),
    "dns1123Subdomain": _SUBDOMAIN_FORM,
    "dns1123SubdomainPrefix": _prefix(_SUBDOMAIN_FORM),
    "dns1035Label": _LABEL_1035_FORM,
    "dns1035LabelPrefix": _prefix(_LABEL_1035_FORM),
    "qualifiedName": _qualified_name,
    "labelValue": _of(_VALUE, "label value", _LABEL_LENGTH),
    "uri": _uri,
    "uuid": _of(_UUID, "UUID"),
    "byte": _of(_BASE64, "base64"),
    "date": _date,
    "datetime": _datetime,
}
