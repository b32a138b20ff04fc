"""Rules of pods and their events: the immutable spec, gates that only go, recorded claims."""

from __future__ import annotations

from dra.common.resources import Obj, at
from sim.apiserver.refusals.causes import Cause, forbidden, invalid, not_found, required

_MUTABLE = (
    "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def check_pod(spec: Obj) -> list[Cause]:
    """Checks that there is something to run, and that its claims are what a kubelet can find."""
    causes = [] if spec.get("containers") else [required("spec.containers")]
    claims = spec.get("resourceClaims", [])
    for index, claim in enumerate(claims):
        sources = [f for f in ("resourceClaimName", "resourceClaimTemplateName") if f in claim]
        if len(sources) != 1:
            which = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be"
            none = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            text = f"{which} specified" if sources else none
            causes.append(invalid(f"spec.resourceClaims[{index}]", claim, text))
    known = {claim.get("name") for claim in claims}
    for part in ("initContainers", "containers"):
        for number, container in enumerate(spec.get(part, [])):
            path = f"spec.{part}[{number}].resources.claims"
            causes += [
                not_found(f"{path}[{index}]", reference.get("name", ""))
                for index, reference in enumerate(at(container, "resources", "claims"))
                if reference.get("name") not in known
            ]
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


def check_event(event: Obj) -> list[Cause]:
    """Checks that an event lies where its object lies; those of cluster-wide ones in default."""
    namespace = event["metadata"].get("namespace", "")
    about = event["involvedObject"].get("namespace", "")
    if about == namespace or (not about and namespace == "default"):
        return []
    return [invalid("involvedObject.namespace", about, "does not match event.namespace")]


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
