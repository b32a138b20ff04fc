"""Addresses, networks and URLs in CEL, as Kubernetes adds them to it.

They travel as maps (``{"ip": "..."}``), like quantities. Signatures follow
k8s.io/apiserver/pkg/cel/library (ip, cidr, urls).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cel_expr_python import cel

from dra.cel.declaring import BOOL, INT, MAP, STRING, declare, function, method
from dra.cel.opaque import Opaque

Address = IPv4Address | IPv6Address

_QUERY = cel.Type.Map(cel.Type.STRING, cel.Type.List(cel.Type.STRING))


def functions() -> Iterable[Any]:
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
    yield declare("isIP", function(_accepts(_parse_ip), BOOL, STRING))
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
    yield declare("isCIDR", function(_accepts(_parse_cidr), BOOL, STRING))
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


def _accepts(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def accepts(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return accepts


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
    _ = parts.port  # raises for one that is no number
    if any(c.isspace() for c in text) or not (parts.scheme or text.startswith("/")):
        raise ValueError(f"URL parse error during conversion from string: {text[:100]!r}")
    return {"url": text}


def is_url(text: str) -> bool:
    """True if it is a URL, or an absolute path."""
    return _accepts(_url)(text)


def _host(value: Opaque) -> str:
    return urlsplit(value["url"]).netloc.rpartition("@")[2]
