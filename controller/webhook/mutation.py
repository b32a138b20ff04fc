"""Mutation of pods that ask by limits, where the API server has no policy that does it."""

from __future__ import annotations

import base64
import json

from dra.common.resources import Obj
from dra.limits.rewriting import rewriting


def answer(review: Obj) -> Obj:
    """The AdmissionReview (admission.k8s.io/v1) that answers one: a JSON patch of the pod, if any.

    It makes nothing: claims come from templates, so that a pod which is refused later leaves none.

    Raises:
        ValueError: it is no AdmissionReview with a pod.
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
