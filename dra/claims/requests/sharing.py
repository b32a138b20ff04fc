"""Sharing that cannot be had, as far as a claim's spec and its classes tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from api.errors import InvalidObjectError
from dra.claims.claims import ALL, Request
from dra.claims.classes import (
    GPU_CLASS,
    SHARE_CLASS,
    SLICE_SHARE_CLASS,
    DeviceClass,
    looks_ours,
)
from dra.claims.reasons import Obstacle, Reason
from dra.claims.sharing import (
    Sharing,
    misplaced,
    misplaced_share,
    not_shared,
    sharing_of,
    states_share,
    too_many,
)

_Entries = Sequence[Mapping[str, Any]]


class RequestedSharing:
    """Sharing that the configuration of a claim and of its classes asks for.

    ``of_class`` has the configuration of a class, which is empty if the class is not known.
    """

    def __init__(self, config: _Entries, of_class: Callable[[str], _Entries], driver: str) -> None:
        self._config = config
        self._of_class = of_class
        self._driver = driver

    def of(self, request: Request) -> Sharing:
        """Sharing of one exact request's devices.

        Raises:
            InvalidObjectError: a configuration cannot be understood.
        """
        return sharing_of(self._entries(request), request.name, self._driver)

    def _entries(self, request: Request) -> _Entries:
        return (*self._of_class(request.class_name), *self._config)

    def by_mps(self, requests: Iterable[Request]) -> dict[str, bool]:
        """True for each request whose devices are shared by MPS; False for all if one is unclear.

        A request of which one choice is counts as one that is.
        """
        requests = tuple(requests)
        try:
            return {r.name: any(self.of(choice).by_mps for choice in r.choices) for r in requests}
        except InvalidObjectError:
            return dict.fromkeys((r.name for r in requests), False)

    def problem(self, requests: Sequence[Request]) -> str:
        """Fault of the sharing of a claim with these requests; empty if there is none.

        Of a class with a name of its own only the node can tell what it was given.

        Raises:
            InvalidObjectError: as ``of``.
        """
        clients: list[Request] = []
        for choice in (choice for request in requests for choice in request.choices):
            found = self.of(choice)
            if found.by_mps:
                clients.append(choice)
            name = choice.class_name
            device = f"request {choice.name!r} of class {name!r}"
            is_slice = name not in (GPU_CLASS, SHARE_CLASS)
            if not looks_ours(name):
                continue
            if fault := misplaced(found, device, is_slice=is_slice):
                return fault
            kind = states_share(self._entries(choice), choice.name, self._driver)
            if kind and name not in (SHARE_CLASS, SLICE_SHARE_CLASS):
                return not_shared(device, is_slice=is_slice)
            if fault := misplaced_share(kind, device, is_slice=is_slice):
                return fault
        if any(choice.mode == ALL for choice in clients):
            return too_many("all that there are")
        most: dict[str, int] = {}
        for choice in clients:
            request = choice.name.partition("/")[0]
            most[request] = max(choice.count, most.get(request, 0))
        count = sum(most.values())
        return too_many(str(count)) if count > 1 else ""


def find_problem(
    requests: Sequence[Request],
    config: _Entries,
    classes: Mapping[str, DeviceClass],
    driver: str,
) -> Obstacle | None:
    """Obstacle to the sharing of a claim, whose configuration can be understood."""
    problem = requested_sharing(config, classes, driver).problem(requests)
    return Obstacle(Reason.BAD_CONFIG, problem) if problem else None


def requested_sharing(
    config: _Entries, classes: Mapping[str, DeviceClass], driver: str
) -> RequestedSharing:
    """The sharing that a claim's ``config`` and ``classes``, by name, ask for."""

    def of_class(name: str) -> _Entries:
        known = classes.get(name)
        return known.config if known is not None else ()

    return RequestedSharing(config, of_class, driver)
