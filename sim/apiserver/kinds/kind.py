"""The life cycle of a kind: defaults, what each endpoint may write, selectable fields.

`Kind` is the common case; kinds with rules of their own derive from it in `core` and `dra`, custom
resources in `custom`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dra.common.resources import Obj
from sim.apiserver.schema.normalise import rfc3339

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from sim.apiserver.ownership.fieldsets import Path
    from sim.apiserver.refusals.causes import Cause
    from sim.apiserver.storage.store import Store

DEFAULT_GATES = frozenset(
    ["DRADeviceBindingConditions", "DRADeviceTaints", "DRAPartitionableDevices"]
)
"""Feature gates that 1.36 has on and that make a difference here."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Surroundings of an object that rules may look at: the clock, the gates, other objects."""

    now: Callable[[], datetime]
    store: Store
    gates: frozenset[str] = field(default=DEFAULT_GATES)

    def timestamp(self) -> str:
        """The present moment as the API writes it."""
        return rfc3339(self.now())


class Kind:
    """The common case: a spec under a generation, a status of its own endpoint."""

    bumps_generation = False
    unconditional_update = True
    created_by_update = False
    graceful = False
    status_carries_metadata = True
    create_keeps_status = False
    selectable: frozenset[str] = frozenset()

    def default(self, obj: Obj, env: Environment) -> None:
        """Fills in defaults; runs on every write, so it must be idempotent."""

    def prepare_create(self, obj: Obj, env: Environment) -> None:
        """Drops or sets what a client may not decide on creation."""

    def prepare_update(self, new: Obj, old: Obj, env: Environment) -> None:
        """Undoes what a write to the main endpoint may not change."""

    def prepare_status(self, new: Obj, old: Obj, env: Environment) -> None:
        """Undoes what a write to the status endpoint may not change."""

    def check_create(self, obj: Obj, env: Environment) -> Iterable[Cause]:
        """Gives what is wrong with a new object."""
        return ()

    def check_update(self, new: Obj, old: Obj, env: Environment) -> Iterable[Cause]:
        """Gives what is wrong with an update of the main endpoint."""
        return self.check_create(new, env)

    def check_status(self, new: Obj, old: Obj, env: Environment) -> Iterable[Cause]:
        """Gives what is wrong with an update of the status endpoint."""
        return ()

    def fields(self, obj: Obj) -> Obj:
        """The values of the selectable fields beside name and namespace."""
        return {path: text_at(obj, path) for path in self.selectable}

    def grace_seconds(self, obj: Obj, asked: int | None) -> int:
        """Gives how long the object outlives a delete request."""
        return 0

    def select(self, obj: Obj) -> Obj:
        """All selectable fields."""
        metadata = obj["metadata"]
        own = {
            "metadata.name": metadata.get("name", ""),
            "metadata.namespace": metadata.get("namespace", ""),
        }
        return own | self.fields(obj)

    def begin(self, obj: Obj, env: Environment, *, has_status: bool) -> None:
        """Brings a new object into its first state."""
        if has_status and not self.create_keeps_status:
            obj.pop("status", None)
        if self.bumps_generation:
            obj["metadata"]["generation"] = 1
        self.prepare_create(obj, env)

    def advance(self, new: Obj, old: Obj, env: Environment, *, has_status: bool) -> None:
        """Confines an update of the main endpoint to what it may change."""
        if has_status:
            _take_over(new, old, "status")
        self.prepare_update(new, old, env)
        counted = ("metadata", "status") if has_status else ("metadata",)
        if self.bumps_generation and _but(new, counted) != _but(old, counted):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1

    def report(self, new: Obj, old: Obj, env: Environment) -> None:
        """Confines an update of the status endpoint to what it may change."""
        for name in set(new) | set(old):
            if name not in ("apiVersion", "kind", "metadata", "status"):
                _take_over(new, old, name)
        if not self.status_carries_metadata:
            kept = {"managedFields", "resourceVersion"}
            theirs = {k: v for k, v in new["metadata"].items() if k in kept}
            new["metadata"] = {k: v for k, v in old["metadata"].items() if k not in kept} | theirs
        self.prepare_status(new, old, env)

    def reset_fields(self, subresource: str, *, has_status: bool) -> tuple[Path, ...]:
        """The fields that a writer of this endpoint cannot own."""
        if subresource == "status":
            spec: tuple[Path, ...] = (("f:spec",),)
            return spec if self.status_carries_metadata else (*spec, ("f:metadata",))
        return (("f:status",),) if has_status else ()


def _take_over(new: Obj, old: Obj, name: str) -> None:
    if name in old:
        new[name] = old[name]
    else:
        new.pop(name, None)


def _but(obj: Obj, names: tuple[str, ...]) -> Obj:
    return {name: value for name, value in obj.items() if name not in names}


def text_at(obj: Obj, path: str) -> str:
    """The scalar at a dotted path as text, "" if there is none."""
    value: Any = obj
    for name in path.lstrip(".").split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
