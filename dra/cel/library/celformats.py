"""Named formats of strings in CEL, as Kubernetes has them.

Signatures follow k8s.io/apiserver/pkg/cel/library (format). A format travels as the map
``{"format": "<name>"}``. What is wrong with a string is said in our own words: their number is that
of Kubernetes, their text is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import date
from typing import Any

from cel_expr_python import cel

from dra.cel.declaring import MAP, STRING, declare, function, method
from dra.cel.library.celnetwork import is_url
from dra.cel.opaque import Opaque

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
    """Declarations; ``named`` and ``validate`` return one or none, see ``celspelling``."""
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
