"""Syntax of names and labels; each check gives the complaint, or None.

Rules and wording are those of k8s.io/apimachinery `util/validation`.
"""

from __future__ import annotations

import re
from typing import Any

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_NAME = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = rf"({_NAME})?"

DNS_LABEL_LENGTH = 63
SUBDOMAIN_LENGTH = 253


def _matches(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text) is not None


def dns_label(text: str) -> str | None:
    """Checks an RFC 1123 label: at most 63 of `a-z0-9-`."""
    if len(text) > DNS_LABEL_LENGTH:
        return f"must be no more than {DNS_LABEL_LENGTH} bytes"
    if _matches(_LABEL, text):
        return None
    return (
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
        "and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', "
        f"regex used for validation is '{_LABEL}')"
    )


def dns_subdomain(text: str) -> str | None:
    """Checks an RFC 1123 subdomain: labels joined by dots, at most 253 characters."""
    if len(text) > SUBDOMAIN_LENGTH:
        return f"must be no more than {SUBDOMAIN_LENGTH} bytes"
    if _matches(_SUBDOMAIN, text):
        return None
    return (
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' "
        "or '.', and must start and end with an alphanumeric character (e.g. 'example.com', "
        f"regex used for validation is '{_SUBDOMAIN}')"
    )


def path_segment(text: str) -> str | None:
    """Checks a name that may be anything that fits into a URL path (RBAC)."""
    if text in (".", "..") or "/" in text or "%" in text:
        return "may not be '.' or '..' and may not contain '/' or '%'"
    return None


def qualified_name(text: str) -> str | None:
    """Checks a label key: `[prefix/]name`."""
    prefix, slash, name = text.rpartition("/")
    if "/" in prefix or (slash and not prefix) or not name:
        return (
            "a valid label key must be a name part, optionally with a DNS subdomain prefix and "
            "'/' (e.g. 'example.com/MyName')"
        )
    if prefix and (complaint := dns_subdomain(prefix)):
        return "prefix part " + complaint
    if len(name) > DNS_LABEL_LENGTH:
        return f"name part must be no more than {DNS_LABEL_LENGTH} bytes"
    if _matches(_NAME, name):
        return None
    return (
        "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and "
        "end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex "
        f"used for validation is '{_NAME}')"
    )


def label_value(text: Any) -> str | None:
    """Checks a label value: empty, or at most 63 of `A-Za-z0-9-_.`."""
    if not isinstance(text, str):
        return "must be a string"
    if len(text) > DNS_LABEL_LENGTH:
        return f"must be no more than {DNS_LABEL_LENGTH} bytes"
    if _matches(_VALUE, text):
        return None
    return (
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' "
        "or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or "
        f"'my_value',  or '12345', regex used for validation is '{_VALUE}')"
    )
