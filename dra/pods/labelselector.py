"""Label selectors as the API machinery reads them: requirements that all hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dra.common.resources import at
from dra.pods.nodeselector import holds, indexed

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """The requirements of a selector; None where there is no selector, which selects nothing."""

    requirements: tuple[Mapping[str, Any], ...] | None = None

    @property
    def everything(self) -> bool:
        """True if it selects whatever there is."""
        return self.requirements == ()

    @property
    def parts(self) -> int:
        """The number of requirements that labels are compared with, at the most."""
        return len(self.requirements or ())

    def matches(self, labels: Labels) -> bool:
        """True if it selects what carries ``labels``."""
        if self.requirements is None:
            return False
        for requirement in self.requirements:  # a loop: this is asked of each group of pods
            if not holds(requirement, labels.get(requirement["key"])):
                return False
        return True

    def narrowed(self, labels: Labels) -> LabelSelector:
        """This selector, and the same ``labels``; one that selects nothing still does."""
        if self.requirements is None or not labels:
            return self
        return LabelSelector((*self.requirements, *_equal(labels)))


def read_label_selector(obj: Mapping[str, Any] | None) -> LabelSelector:
    """The LabelSelector in ``obj``."""
    if obj is None:
        return LabelSelector()
    equal = _equal(at(obj, "matchLabels", default={}))
    return LabelSelector((*equal, *map(indexed, at(obj, "matchExpressions"))))


def _equal(labels: Labels) -> tuple[Mapping[str, Any], ...]:
    return tuple({"key": k, "operator": "In", "values": [v]} for k, v in labels.items())
