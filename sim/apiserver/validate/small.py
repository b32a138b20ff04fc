"""Rules of small kinds: events and leases."""

from __future__ import annotations

from dra.common.resources import Obj
from sim.apiserver.refusals.causes import Cause, invalid, required

_MUST_BE_POSITIVE = "must be greater than 0"
_CLUSTER_SCOPED_EVENTS = "default"
_MESSAGE_LENGTH = 1024


def check_event(event: Obj) -> list[Cause]:
    """Checks that the event lies where its object lies, and new-style events are complete."""
    namespace = event["metadata"].get("namespace", "")
    about = event["involvedObject"].get("namespace", "")
    causes = []
    if about != namespace and (about or namespace != _CLUSTER_SCOPED_EVENTS):
        causes.append(invalid("involvedObject.namespace", about, "does not match event.namespace"))
    if not event.get("eventTime"):
        return causes
    causes += [
        required(field, "")
        for field in ("reportingComponent", "reportingInstance", "action", "reason")
        if not event.get(field)
    ]
    if event.get("type") not in ("Normal", "Warning"):
        causes.append(invalid("type", event.get("type", ""), "has invalid value: Normal, Warning"))
    if len(event.get("message", "")) > _MESSAGE_LENGTH:
        causes.append(invalid("message", "", f"can have at most {_MESSAGE_LENGTH} characters"))
    return causes


def check_lease(spec: Obj) -> list[Cause]:
    """Checks durations, transitions and the holder."""
    causes = []
    if spec.get("leaseDurationSeconds", 1) <= 0:
        duration = spec["leaseDurationSeconds"]
        causes.append(invalid("spec.leaseDurationSeconds", duration, _MUST_BE_POSITIVE))
    if spec.get("leaseTransitions", 0) < 0:
        text = "must be greater than or equal to 0"
        causes.append(invalid("spec.leaseTransitions", spec["leaseTransitions"], text))
    return causes
