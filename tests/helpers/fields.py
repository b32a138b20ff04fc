"""Fields of Kubernetes' objects that helpers of tests take as keywords: none is swallowed."""

from __future__ import annotations

from difflib import get_close_matches

from dra.common.resources import Obj
from sim.apiserver import models


def checked(model: str, fields: Obj) -> Obj:
    """``fields``, all of which a model of the official client has, such as ``V1PodSpec``.

    Raises:
        TypeError: it lacks one; names it and the nearest that there is.
    """
    known = models.fields(model)
    for name in fields:
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.0)
            raise TypeError(f"{model} has no field {name!r}; did you mean {near[0]!r}?")
    return fields
