"""CustomResourceDefinitions and their effect: a part of the control plane in kube-apiserver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dra.common.resources import Obj
from sim.apiserver.kinds.custom import resource_types
from sim.apiserver.schema.resources import CUSTOM_RESOURCE_DEFINITIONS

if TYPE_CHECKING:
    from sim.apiserver.kinds.kind import Environment
    from sim.apiserver.schema.resources import Catalogue
    from sim.apiserver.storage.store import Change


class Definitions:
    """Serves what definitions define, and marks them as established."""

    def __init__(self, env: Environment, catalogue: Catalogue) -> None:
        self._env = env
        self._catalogue = catalogue
        self._close = env.store.listen(self._see)

    def _see(self, change: Change) -> None:
        if change.family != CUSTOM_RESOURCE_DEFINITIONS.family:
            return
        definition = change.new.copy()
        spec = definition["spec"]
        group, plural = spec["group"], spec["names"]["plural"]
        self._catalogue.withdraw(group, plural)
        if change.type == "DELETED":
            self._remove_objects(group, plural)
            return
        for resource in resource_types(definition):
            self._catalogue.serve(resource)
        status = self._status(definition)
        if definition.get("status") != status:
            self._env.store.put(change.family, definition | {"status": status})

    def _remove_objects(self, group: str, plural: str) -> None:
        store = self._env.store
        for record in store.records((group, plural)):
            store.remove((group, plural), record.copy())

    def _status(self, definition: Obj) -> Obj:
        spec = definition["spec"]
        names = spec["names"]
        old = definition.get("status", {})
        stored = next(version["name"] for version in spec["versions"] if version.get("storage"))
        versions = list(dict.fromkeys([*old.get("storedVersions", []), stored]))
        since = {c["type"]: c["lastTransitionTime"] for c in old.get("conditions", [])}
        conditions = [
            {
                "type": kind,
                "status": "True",
                "lastTransitionTime": since.get(kind, self._env.timestamp()),
                "reason": reason,
                "message": message,
            }
            for kind, reason, message in (
                ("NamesAccepted", "NoConflicts", "no conflicts found"),
                ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
            )
        ]
        return {"acceptedNames": names, "conditions": conditions, "storedVersions": versions}
