"""Objects as the controller's mirrors leave them."""

from __future__ import annotations

import msgspec

from controller.cluster.decoder import Decoder
from dra.common.resources import Obj, Resource
from tests.controller.helpers.objects import DRIVER, versioned


class Stored:
    """The mirror of one resource: leaves of an object what the controller keeps."""

    def __init__(self, resource: Resource) -> None:
        self._decode = Decoder(resource, DRIVER)

    def __call__(self, body: Obj) -> Obj:
        body = body if "uid" in body["metadata"] else versioned(body)
        return self._decode(msgspec.Raw(msgspec.json.encode(body)))
