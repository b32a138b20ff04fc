"""The local copy of a resource's objects that a reflector keeps."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from dra.common.resources import Obj


@dataclass(frozen=True, slots=True)
class Change:
    """Change of one object.

    ``added`` has only ``new``, ``deleted`` only ``old`` (the last known state), ``modified`` both.
    ``rewound``: the server went back to an older state, so that ``new`` is true although its
    resourceVersion is lower than one that was seen.
    """

    kind: Literal["added", "modified", "deleted"]
    old: Obj | None
    new: Obj | None
    rewound: bool = False


class Store:
    """Objects by namespace and name. Thread-safe. The objects are shared: never mutate them.

    Only the reflector writes; its writes return the changes that they made, with objects as they
    were given. The store itself holds what ``remember`` makes of them, which must leave name,
    namespace and UID as they are; an object of which that stays equal has not changed.
    """

    def __init__(self, remember: Callable[[Obj], Obj] = lambda obj: obj) -> None:
        self._remember = remember
        self._lock = threading.Lock()
        self._objects: dict[tuple[str, str], Obj] = {}

    def get(self, name: str, namespace: str = "") -> Obj | None:
        """The object, or None."""
        with self._lock:
            return self._objects.get((namespace, name))

    def __len__(self) -> int:
        with self._lock:
            return len(self._objects)

    def put(self, obj: Obj) -> list[Change]:
        """Take one object's new state."""
        with self._lock:
            return self._put(obj)

    def remove(self, obj: Obj) -> list[Change]:
        """Forget an object, given in its last state."""
        with self._lock:
            known = self._objects.pop(_key(obj), None)
        return [] if known is None else [Change("deleted", obj, None)]

    def replace(self, objects: Iterable[Obj], *, rewound: bool = False) -> list[Change]:
        """Take a complete list; objects that are not in it are deleted.

        Of one that is ``rewound`` every object is reported, those that seem unchanged as well. An
        object that has become older is rewound too: a restore of etcd may raise the version of
        everything, so that watches end, and none of the objects'.
        """
        objects = [*objects]
        listed = {_key(obj) for obj in objects}
        with self._lock:
            gone = [key for key in self._objects if key not in listed]
            changes = [Change("deleted", self._objects.pop(key), None) for key in gone]
            for obj in objects:
                before = self._objects.get(_key(obj))
                found = self._put(obj)
                is_back = before is not None and (rewound or _is_older(obj, before))
                if is_back and not any(c.kind == "added" for c in found):
                    found = [Change("modified", before, obj, rewound=True)]
                changes += found
        return changes

    def _put(self, obj: Obj) -> list[Change]:
        key = _key(obj)
        old, new = self._objects.get(key), self._remember(obj)
        if old == new:
            return []
        self._objects[key] = new
        if old is None:
            return [Change("added", None, obj)]
        if _meta(old, "uid") != _meta(obj, "uid"):
            # Deleted and created again under the same name while nobody watched.
            return [Change("deleted", old, None), Change("added", None, obj)]
        return [Change("modified", old, obj)]

    # Last, because below it `list` means this method.
    def list(self) -> list[Obj]:
        """All objects, in no particular order; the list is the caller's own."""
        with self._lock:
            return [*self._objects.values()]


def _is_older(obj: Obj, known: Obj) -> bool:
    version, before = _meta(obj, "resourceVersion"), _meta(known, "resourceVersion")
    return version.isdigit() and before.isdigit() and int(version) < int(before)


def _meta(obj: Obj, field: str) -> str:
    return str(obj["metadata"].get(field) or "")


def _key(obj: Obj) -> tuple[str, str]:
    return _meta(obj, "namespace"), obj["metadata"]["name"]
