"""Rules of pods: containers, resource claims, scheduling gates, the immutable spec."""

from __future__ import annotations

from dra.common.resources import Obj, at
from sim.apiserver.refusals import names
from sim.apiserver.refusals.causes import (
    Cause,
    duplicate,
    forbidden,
    invalid,
    not_found,
    required,
)
from sim.apiserver.validate.nodeselector import check_node_selector

_MUTABLE = (
    "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def check_pod(spec: Obj) -> list[Cause]:
    """Checks a whole pod spec."""
    causes: list[Cause] = []
    claims = spec.get("resourceClaims", [])
    if not spec.get("containers"):
        causes.append(required("spec.containers"))
    for part in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(part, [])):
            causes += _check_uses(container, f"spec.{part}[{index}]", claims)
    causes += _check_claims(claims)
    causes += _check_gates(spec)
    affinity = at(spec, "affinity", "nodeAffinity", default={})
    if needed := affinity.get("requiredDuringSchedulingIgnoredDuringExecution"):
        path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
        causes += check_node_selector(needed, path)
    return causes


def _check_uses(container: Obj, path: str, claims: list[Obj]) -> list[Cause]:
    causes: list[Cause] = []
    known = {claim.get("name") for claim in claims}
    used: set[tuple[str, str]] = set()
    resources = container.get("resources", {})
    for index, reference in enumerate(resources.get("claims", [])):
        inside = f"{path}.resources.claims[{index}]"
        wanted = reference.get("name", "")
        key = (wanted, reference.get("request", ""))
        if not wanted:
            causes.append(required(f"{inside}.name"))
        elif key in used or (wanted, "") in used:
            causes.append(duplicate(inside, "/".join(filter(None, key))))
        elif wanted not in known:
            causes.append(not_found(inside, wanted))
        used.add(key)
    return causes


def _check_claims(claims: list[Obj]) -> list[Cause]:
    causes = []
    seen: set[str] = set()
    for index, claim in enumerate(claims):
        path = f"spec.resourceClaims[{index}]"
        name = claim.get("name", "")
        if not name:
            causes.append(required(f"{path}.name"))
        elif name in seen:
            causes.append(duplicate(f"{path}.name", name))
        elif complaint := names.dns_label(name):
            causes.append(invalid(f"{path}.name", name, complaint))
        seen.add(name)
        sources = [f for f in ("resourceClaimName", "resourceClaimTemplateName") if f in claim]
        if len(sources) > 1:
            text = (
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            )
            causes.append(invalid(path, claim, text))
        elif not sources:
            text = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            causes.append(invalid(path, claim, text))
        causes += [
            invalid(f"{path}.{source}", claim[source], complaint)
            for source in sources
            if (complaint := names.dns_subdomain(claim[source]))
        ]
    return causes


def _check_gates(spec: Obj) -> list[Cause]:
    causes = []
    seen: set[str] = set()
    gates = spec.get("schedulingGates", [])
    for index, gate in enumerate(gates):
        path = f"spec.schedulingGates[{index}]"
        name = gate.get("name", "")
        if complaint := names.qualified_name(name):
            causes.append(invalid(path, name, complaint))
        if name in seen:
            causes.append(duplicate(path, name))
        seen.add(name)
    if gates and spec.get("nodeName"):
        text = "cannot be set until all schedulingGates have been cleared"
        causes.append(forbidden("spec.nodeName", text))
    return causes


def check_pod_update(new: Obj, old: Obj) -> list[Cause]:
    """Checks an update: gates may only go, tolerations only come, images may change."""
    causes = check_pod(new)
    if len(new.get("containers", [])) != len(old.get("containers", [])):
        text = "pod updates may not add or remove containers"
        return [*causes, forbidden("spec.containers", text)]
    before = {gate["name"] for gate in old.get("schedulingGates", [])}
    for index, gate in enumerate(new.get("schedulingGates", [])):
        if gate.get("name") not in before:
            text = f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'"
            causes.append(forbidden(f"spec.schedulingGates[{index}].name", text))
    kept = new.get("tolerations", [])
    if any(toleration not in kept for toleration in old.get("tolerations", [])):
        text = "existing toleration can not be modified except its tolerationSeconds"
        causes.append(forbidden("spec.tolerations", text))
    if _immutable_part(new, old) != _immutable_part(old, old):
        text = f"pod updates may not change fields other than {_MUTABLE}"
        causes.append(forbidden("spec", text))
    return causes


def check_pod_status(pod: Obj) -> list[Cause]:
    """Checks that the recorded claims belong to claims of the pod."""
    known = {claim.get("name") for claim in pod["spec"].get("resourceClaims", [])}
    text = "must match the name of an entry in `spec.resourceClaims`"
    statuses = at(pod, "status", "resourceClaimStatuses")
    return [
        invalid(f"status.resourceClaimStatuses[{index}].name", status.get("name"), text)
        for index, status in enumerate(statuses)
        if status.get("name") not in known
    ]


def _immutable_part(spec: Obj, old: Obj) -> Obj:
    mutable = {"schedulingGates", "tolerations", "activeDeadlineSeconds"}
    if old.get("schedulingGates"):
        mutable |= _gated_freedom(spec, old)
    kept = {name: value for name, value in spec.items() if name not in mutable}
    for part in ("containers", "initContainers"):
        if part in kept:
            kept[part] = [
                {name: value for name, value in container.items() if name != "image"}
                for container in kept[part]
            ]
    return kept


def _gated_freedom(spec: Obj, old: Obj) -> set[str]:
    """Gives what a gated pod may still tighten: its node selector and node affinity."""
    free = set()
    if old.get("nodeSelector", {}).items() <= spec.get("nodeSelector", {}).items():
        free.add("nodeSelector")
    before, after = old.get("affinity", {}), spec.get("affinity", {})
    others = ("podAffinity", "podAntiAffinity")
    if all(before.get(name) == after.get(name) for name in others):
        free.add("affinity")
    return free
