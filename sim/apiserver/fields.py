"""Rules of metadata: names, labels, finalizers, and what an update may not change."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sim.apiserver.errors import Cause, forbidden, invalid, required

if TYPE_CHECKING:
    from dra.common.resources import Obj
    from sim.apiserver.resources import ResourceType


_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_NAME = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_BUILTIN_FINALIZERS = ("foregroundDeletion", "orphan", "kubernetes")
# Rule: pattern, most characters, and the rule in words.
_RULES = {
    "label": (_LABEL, 63, "a lowercase RFC 1123 label"),
    "subdomain": (_SUBDOMAIN, 253, "a lowercase RFC 1123 subdomain"),
    "path": (r"[^/%]+", 253, "a name without '/' and '%'"),
    "key": (rf"({_SUBDOMAIN}/)?{_NAME}", 63, "a name part, optionally with a prefix and '/'"),
    "value": (rf"({_NAME})?", 63, "a valid label: empty, or letters, digits, '-', '_' and '.'"),
    "identifier": (r"[A-Za-z_][A-Za-z0-9_]*", 32, "a valid C identifier"),
}


def complaint(rule: str, text: object) -> str:
    """Says in which way a name breaks a rule; empty if it does not."""
    pattern, longest, words = _RULES[rule]
    if len(str(text).rpartition("/")[2]) > longest:
        return f"must be no more than {longest} bytes"
    if isinstance(text, str) and re.fullmatch(pattern, text):
        return ""
    return f"must be {words} (regex used for validation is '{pattern}')"


def check_name(rule: str, text: str, path: str) -> list[Cause]:
    """Checks a name that has to be there."""
    if not text:
        return [required(path)]
    found = complaint(rule, text)
    return [invalid(path, text, found)] if found else []


def check_metadata(resource: ResourceType, metadata: Obj) -> list[Cause]:
    """Checks names, labels and finalizers."""
    rule = "subdomain"
    if resource.group == "rbac.authorization.k8s.io":
        rule = "path"
    elif resource.plural in ("namespaces", "services"):
        rule = "label"
    causes = check_name(rule, metadata.get("name", ""), "metadata.name")
    for key, value in metadata.get("labels", {}).items():
        for checked, text in (("key", key), ("value", value)):
            if found := complaint(checked, text):
                causes.append(invalid("metadata.labels", text, found))
    for index, finalizer in enumerate(metadata.get("finalizers", [])):
        found = complaint("key", finalizer)
        if not found and "/" not in finalizer and finalizer not in _BUILTIN_FINALIZERS:
            found = "name is neither a standard finalizer name nor is it fully qualified"
        if found:
            causes.append(invalid(f"metadata.finalizers[{index}]", finalizer, found))
    return causes


def check_metadata_update(new: Obj, old: Obj) -> list[Cause]:
    """Checks what an update may not change; new finalizers are refused during deletion."""
    causes = []
    added = sorted(set(new.get("finalizers", [])) - set(old.get("finalizers", [])))
    if new.get("deletionTimestamp") and added:
        text = (
            "no new finalizers can be added if the object is being deleted, found new "
            "finalizers []string{" + ", ".join(f'"{name}"' for name in added) + "}"
        )
        causes.append(forbidden("metadata.finalizers", text))
    return causes + [
        invalid(f"metadata.{field}", new.get(field), "field is immutable")
        for field in ("name", "namespace", "uid", "creationTimestamp")
        if new.get(field) != old.get(field)
    ]
