"""What the tests of events are about, and recorders for them."""

from collections.abc import Callable

from dra.kube.events import EventRecorder
from tests.dra.kube.stub import Stub, reply, thing

POD = thing("train-0", namespace="team")

NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1", "uid": "u"}}

OK = reply({"kind": "Event"})

EVENTS = "/api/v1/namespaces/team/events"

Make = Callable[..., EventRecorder]


def sent(stub: Stub) -> list[tuple[str, str]]:
    return [(request.method, request.path) for request in stub.requests]
