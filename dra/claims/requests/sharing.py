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
from dra.claims.sharing import (
    OFFERED,
    Setting,
    Sharing,
    misplaced,
    misplaced_share,
    not_shared,
    settings_of,
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
        self._of_claim = settings_of(config, driver)
        self._of_class = of_class
        self._driver = driver
        self._settings: dict[str, tuple[Setting, ...]] = {}

    def of(self, request: Request) -> Sharing:
        """Sharing of one exact request's devices.

        Raises:
            InvalidObjectError: a configuration cannot be understood.
        """
        return sharing_of(self._of(request.class_name), request.name)

    def _of(self, name: str) -> tuple[Setting, ...]:
        """Settings that count for the requests of a class."""
        if name not in self._settings:
            of_class = settings_of(self._of_class(name), self._driver)
            self._settings[name] = (*of_class, *self._of_claim)
        return self._settings[name]

    def by_mps(self, requests: Iterable[Request]) -> dict[str, bool]:
        """True for each request whose devices are shared by MPS; False for all if one is unclear.

        A request of which one choice is counts as one that is.
        """
        requests = tuple(requests)
        classes = {choice.class_name for r in requests for choice in r.choices}
        if not any(_may_be_mps(each) for name in classes for each in self._of(name)):
            return dict.fromkeys((r.name for r in requests), False)
        try:
            return {r.name: any(self.of(choice).by_mps for choice in r.choices) for r in requests}
        except InvalidObjectError:
            return dict.fromkeys((r.name for r in requests), False)

    def strategies(self, requests: Iterable[Request]) -> dict[str, str]:
        """Strategy by the name of each exact request whose devices are to be shared.

        Raises:
            InvalidObjectError: as ``of``.
        """
        choices = (choice for request in requests for choice in request.choices)
        found = {choice.name: self.of(choice).config.strategy for choice in choices}
        return {name: strategy for name, strategy in found.items() if strategy in OFFERED}

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
            kind = states_share(self._of(name), choice.name)
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


def _may_be_mps(setting: Setting) -> bool:
    try:
        return setting.sharing is not None and setting.sharing.by_mps
    except InvalidObjectError:
        return True


def requested_sharing(
    config: _Entries, classes: Mapping[str, DeviceClass], driver: str
) -> RequestedSharing:
    """The sharing that a claim's ``config`` and ``classes``, by name, ask for."""

    def of_class(name: str) -> _Entries:
        known = classes.get(name)
        return known.config if known is not None else ()

    return RequestedSharing(config, of_class, driver)
