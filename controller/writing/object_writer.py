"""Writer of the controller's changes to nodes, classes and templates; no other module makes any."""

from __future__ import annotations

from collections.abc import Mapping

from controller.writing.leader_requests import LeaderRequests
from dra.common.resources import (
    DEVICE_CLASSES,
    MIG_NODES,
    NODES,
    RESOURCE_CLAIM_TEMPLATES,
    Obj,
    ObjectKey,
    at,
)
from dra.kube.errors import ConflictError, InvalidError, ObjectNotFoundError

_RESERVED = "/spec/reservations"


class ObjectWriter:
    """Writes classes, templates, MigNodes and labels of Nodes for one driver.

    By ``requests``, whose errors go through.
    """

    def __init__(self, requests: LeaderRequests, *, driver: str) -> None:
        self._requests = requests
        self._driver = driver

    def apply_class(self, body: Obj) -> Obj:
        """Create or update a generated DeviceClass."""
        return self._requests.apply(DEVICE_CLASSES, body)

    def remove_class(self, name: str, *, uid: str) -> None:
        """Delete a generated DeviceClass; one that is gone is fine.

        Raises:
            ConflictError: there is another of its name.
        """
        try:
            self._requests.delete(DEVICE_CLASSES, name, namespace="", uid=uid)
        except ObjectNotFoundError:
            return

    def classes_in_templates(self) -> frozenset[str]:
        """Names of the DeviceClasses that ResourceClaimTemplates of any namespace name."""
        found = self._requests.list_all(RESOURCE_CLAIM_TEMPLATES, keep=_only_classes)
        return frozenset(name for each in found for name in each["names"])

    def apply_template(self, body: Obj) -> Obj:
        """Create a generated ResourceClaimTemplate; one that is there stays as it is."""
        return self._requests.apply(RESOURCE_CLAIM_TEMPLATES, body)

    def remove_template(self, key: ObjectKey, *, uid: str) -> None:
        """Delete a generated ResourceClaimTemplate; one that is gone is fine.

        Raises:
            ConflictError: there is another of its name.
        """
        try:
            self._requests.delete(RESOURCE_CLAIM_TEMPLATES, key[1], namespace=key[0], uid=uid)
        except ObjectNotFoundError:
            return

    def apply_node_labels(self, node: str, labels: Mapping[str, str]) -> Obj:
        """Put labels on a Node, and take those off that were put there before and are not given.

        Raises:
            ConflictError: others own labels that have other values; its causes name them.
        """
        body = {"metadata": {"name": node, "labels": dict(labels)}}
        return self._requests.apply(NODES, body, manager=f"{self._driver}/labels", force=False)

    def reserve(self, node: str, before: list[Obj], wanted: list[Obj]) -> Obj:
        """Replace what is reserved in a MigNode (``spec.reservations``).

        Raises:
            ConflictError: it is not ``before`` that is reserved there.
        """
        steps: list[Obj] = [{"op": "test", "path": _RESERVED, "value": before or None}]
        if wanted:
            steps.append({"op": "add", "path": _RESERVED, "value": wanted})
        else:
            steps.append({"op": "remove", "path": _RESERVED})
        try:
            return self._requests.patch(MIG_NODES, node, steps, content="json")
        except InvalidError as error:
            raise ConflictError(f"MigNode {node} has changed: {error.message}") from error


def _only_classes(template: Obj) -> Obj:
    """The classes that a template names: all that is kept of it."""
    requests = at(template, "spec", "spec", "devices", "requests")
    exact = [at(each, "exactly", default={}) for each in requests]
    choices = [*exact, *(choice for each in requests for choice in at(each, "firstAvailable"))]
    return {"names": [name for c in choices if (name := at(c, "deviceClassName", default=""))]}
