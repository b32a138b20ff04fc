"""Fields of Kubernetes' objects that helpers of tests take as keywords: none is swallowed."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from importlib import import_module

from dra.common.resources import Obj


def checked(model: str, fields: Obj) -> Obj:
    """``fields``, all of which a model of the official client has, such as ``V1PodSpec``.

    Raises:
        TypeError: it lacks one; names it and the nearest that there is.
    """
    known = _known(model)
    for name in fields:
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.0)
            raise TypeError(f"{model} has no field {name!r}; did you mean {near[0]!r}?")
    return fields


@cache
def _known(model: str) -> frozenset[str]:
    names = getattr(import_module("kubernetes.client.models"), model).attribute_map
    return frozenset(names.values())
