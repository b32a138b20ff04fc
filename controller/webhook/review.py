"""Reviews of opaque configuration, and of pods with limits, which are rewritten to have claims.

Configuration is in claims, templates and classes, and in the ConfigMaps of node classes. Pods are
rewritten here if no admission policy of the API server does it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

from api import config
from api.errors import InvalidObjectError
from dra.common.resources import Obj
from dra.gpu.layouts import SUFFIXES, read_file
from dra.limits.rewriting import rewriting

_DEVICES: dict[str, tuple[str, ...]] = {
    "ResourceClaim": ("spec", "devices"),
    "ResourceClaimTemplate": ("spec", "spec", "devices"),
    "DeviceClass": ("spec",),
}
"""By kind, the path of the object that has the list ``config``."""


def review_config(review: Obj, *, driver: str) -> Obj:
    """The answer to ``review``, an AdmissionReview (admission.k8s.io/v1), by its configuration.

    Raises:
        ValueError: ``review`` is no AdmissionReview with a request.
    """
    request = review.get("request")
    if not isinstance(request, dict) or "uid" not in request:
        raise ValueError("no AdmissionReview: it has no request with a uid")
    response: Obj = {"uid": request["uid"], "allowed": True}
    if problems := list(_problems(request.get("object"), driver)):
        message = f"{_named(request)}: {'; '.join(problems)}"
        status = {"code": 422, "reason": "Invalid", "message": message}
        response |= {"allowed": False, "status": status}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def _problems(obj: object, driver: str) -> Iterator[str]:
    """Each bad configuration, with its field and an example of a good one."""
    kind = obj.get("kind") if isinstance(obj, dict) else None
    if kind == "ConfigMap":
        yield from _bad_files(obj)
    steps = _DEVICES.get(str(kind), ())
    found: Any = obj
    for step in (*steps, "config"):
        found = found.get(step) if isinstance(found, dict) else None
    for index, entry in enumerate(found if steps and isinstance(found, list) else []):
        opaque = entry.get("opaque") or {}
        if opaque.get("driver") != driver:
            continue
        try:
            config.decode_named(opaque.get("parameters"), of_class=kind == "DeviceClass")
        except InvalidObjectError as error:
            field = ".".join((*steps, f"config[{index}]", "opaque.parameters"))
            field += f".{error.path}" if error.path else ""
            yield f"{field}: {error.problem}; {_remedy()}"


def _bad_files(obj: Any) -> Iterator[str]:
    """Each file of a ConfigMap that is neither a class of nodes nor a file of mig-parted."""
    for name, text in (obj.get("data") or {}).items():
        if str(name).endswith(SUFFIXES):
            try:
                read_file(text)
            except InvalidObjectError as error:
                yield f"data.{name}: {error}"


def _remedy() -> str:
    return f"an {config.KIND} of {config.API_VERSION} looks like {config.encode(config.DEFAULT)}"


def _named(request: Obj) -> str:
    meta = (request.get("object") or {}).get("metadata") or {}
    name = meta.get("name") or f"{meta.get('generateName', '')}*"
    where = f"{request['namespace']}/" if request.get("namespace") else ""
    return f"{request.get('kind', {}).get('kind', 'object')} {where}{name}"


def rewrite_limits(review: Obj) -> Obj:
    """The answer to ``review`` (admission.k8s.io/v1), with a JSON patch if the pod is rewritten.

    No claim is made here. Claims are made from templates, so that a pod which is refused later
    leaves none behind.

    Raises:
        ValueError: ``review`` is no AdmissionReview with a pod.
    """
    request = review.get("request")
    pod = request.get("object") if isinstance(request, dict) else None
    if not isinstance(request, dict) or "uid" not in request or not isinstance(pod, dict):
        raise ValueError("no AdmissionReview: it has no request with a uid and an object")
    response: Obj = {"uid": request["uid"], "allowed": True}
    try:
        steps = rewriting(pod)
    except (AttributeError, TypeError) as error:
        raise ValueError(f"no pod: {error}") from error
    if steps:
        patch = base64.b64encode(json.dumps(steps).encode()).decode()
        response |= {"patchType": "JSONPatch", "patch": patch}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
