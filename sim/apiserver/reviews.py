"""Reviews of tokens and of rights, for programs that ask; requests themselves are not reviewed.

A token ``user.<name>`` is that of the user ``<name>``; another is nobody's. Rights are those of the
RBAC objects that are stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dra.common.resources import Obj, at

if TYPE_CHECKING:
    from sim.apiserver.store import Store

_RBAC = "rbac.authorization.k8s.io"
_TOKEN = "user."  # noqa: S105 - the form of a simulated one


def review(store: Store, path: str, body: Mapping[str, Any]) -> Obj | None:
    """The answer to a review that is posted to ``path``; None of another path."""
    spec = at(body, "spec", default={})
    if path == "/apis/authentication.k8s.io/v1/tokenreviews":
        name = str(spec.get("token", "")).removeprefix(_TOKEN)
        known = name and name != spec.get("token")
        groups = ["system:authenticated"]
        status = {"authenticated": True, "user": {"username": name, "groups": groups}}
        return {**body, "status": status if known else {"authenticated": False}}
    if path == "/apis/authorization.k8s.io/v1/subjectaccessreviews":
        return {**body, "status": {"allowed": _is_allowed(store, spec)}}
    return None


def _is_allowed(store: Store, spec: Mapping[str, Any]) -> bool:
    asked = spec["resourceAttributes"]
    subjects = {("User", spec.get("user"))} | {("Group", g) for g in spec.get("groups", ())}
    rules = _rules(store, asked.get("namespace", ""), subjects)
    return any(
        _covers(rule.get("verbs", ()), asked["verb"])
        and _covers(rule.get("apiGroups", ()), asked.get("group", ""))
        and _covers(rule.get("resources", ()), asked["resource"])
        for rule in rules
    )


def _covers(allowed: Iterable[str], asked: str) -> bool:
    return not {"*", asked}.isdisjoint(allowed)


def _rules(store: Store, namespace: str, subjects: set[tuple[str, Any]]) -> Iterator[Obj]:
    for plural in ("clusterrolebindings", "rolebindings"):
        for record in store.records((_RBAC, plural)):
            binding = record.obj
            where = binding["metadata"].get("namespace", "")
            if where not in ("", namespace):
                continue
            if subjects.isdisjoint((s["kind"], s["name"]) for s in binding.get("subjects", ())):
                continue
            role = binding["roleRef"]
            key = ("" if role["kind"] == "ClusterRole" else where, role["name"])
            found = store.get((_RBAC, f"{role['kind'].lower()}s"), key)
            yield from found.obj.get("rules", ()) if found is not None else ()
