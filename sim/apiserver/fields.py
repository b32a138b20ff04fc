"""Rules of single fields and of metadata, and the causes of a 422, one for each wrong field.

Worded as k8s.io/apimachinery words them (`field.Error`, `util/validation`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sim.apiserver.errors import Cause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dra.common.resources import Obj
    from sim.apiserver.resources import ResourceType


def required(field: str, detail: str = "") -> Cause:
    """Says that a value is missing."""
    return Cause("FieldValueRequired", field, None, detail)


def invalid(field: str, value: Any, detail: str) -> Cause:
    """Says that a value breaks a rule."""
    return Cause("FieldValueInvalid", field, value, detail)


def wrong_type(field: str, value: Any, detail: str) -> Cause:
    """Says that a value has another JSON type than the schema."""
    return Cause("FieldValueTypeInvalid", field, value, detail)


def forbidden(field: str, detail: str) -> Cause:
    """Says that a value may not be given here."""
    return Cause("FieldValueForbidden", field, None, detail)


def duplicate(field: str, value: Any) -> Cause:
    """Says that a value is there twice."""
    return Cause("FieldValueDuplicate", field, value, "")


def not_found(field: str, value: Any) -> Cause:
    """Says that a value names something that is not there."""
    return Cause("FieldValueNotFound", field, value, "")


def not_supported(field: str, value: Any, allowed: Iterable[str]) -> Cause:
    """Says that a value is none of the known ones."""
    words = ", ".join(f'"{word}"' for word in allowed)
    return Cause("FieldValueNotSupported", field, value, f"supported values: {words}")


def too_long(field: str, limit: int) -> Cause:
    """Says that a text has more than `limit` bytes."""
    unit = "byte" if limit == 1 else "bytes"
    return Cause("FieldValueTooLong", field, None, f"may not be more than {limit} {unit}")


def too_many(field: str, count: int, limit: int) -> Cause:
    """Says that a list has more than `limit` items."""
    unit = "item" if limit == 1 else "items"
    return Cause("FieldValueTooMany", field, count, f"must have at most {limit} {unit}")


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


_IMMUTABLE = "field is immutable"
_BUILTIN_FINALIZERS = ("foregroundDeletion", "orphan", "kubernetes")


def name_rule(resource: ResourceType) -> Callable[[str], str | None]:
    """The syntax check for names of this resource."""
    if resource.group == "rbac.authorization.k8s.io":
        return path_segment
    if resource.plural in ("namespaces", "services"):
        return dns_label
    return dns_subdomain


def check_metadata(resource: ResourceType, metadata: Obj) -> list[Cause]:
    """Checks names, labels and finalizers."""
    causes: list[Cause] = []
    generated = metadata.get("generateName", "")
    if generated and (complaint := name_rule(resource)(generated.rstrip("-") or "-")):
        causes.append(invalid("metadata.generateName", generated, complaint))
    name = metadata.get("name", "")
    if not name:
        causes.append(required("metadata.name", "name or generateName is required"))
    elif complaint := name_rule(resource)(name):
        causes.append(invalid("metadata.name", name, complaint))
    causes += check_labels(metadata.get("labels", {}), "metadata.labels")
    for index, finalizer in enumerate(metadata.get("finalizers", [])):
        complaint = qualified_name(finalizer)
        if not complaint and "/" not in finalizer and finalizer not in _BUILTIN_FINALIZERS:
            complaint = "name is neither a standard finalizer name nor is it fully qualified"
        if complaint:
            causes.append(invalid(f"metadata.finalizers[{index}]", finalizer, complaint))
    return causes


def check_labels(labels: Obj, path: str) -> list[Cause]:
    """Checks the syntax of label keys and values."""
    causes = []
    for key, value in labels.items():
        if complaint := qualified_name(key):
            causes.append(invalid(path, key, complaint))
        if complaint := label_value(value):
            causes.append(invalid(path, value, complaint))
    return causes


def check_metadata_update(new: Obj, old: Obj) -> list[Cause]:
    """Checks what an update may not change; new finalizers are refused during deletion."""
    causes = []
    if new.get("deletionTimestamp"):
        added = sorted(set(new.get("finalizers", [])) - set(old.get("finalizers", [])))
        if added:
            text = (
                "no new finalizers can be added if the object is being deleted, found new "
                "finalizers []string{" + ", ".join(f'"{name}"' for name in added) + "}"
            )
            causes.append(forbidden("metadata.finalizers", text))
    return causes + [
        invalid(f"metadata.{field}", new.get(field), _IMMUTABLE)
        for field in ("name", "namespace", "uid", "creationTimestamp")
        if new.get(field) != old.get(field)
    ]
