"""Requests to release GPUs, by a drain or a pause of the node, and the texts that tell of it."""

from __future__ import annotations

from dataclasses import dataclass

from dra.gpu.inventory import Drain
from kubeletplugin.gpus.coexistence.pausing import Pause
from kubeletplugin.gpus.known_gpu import KnownGpu


@dataclass(frozen=True, slots=True)
class ReleaseRequest:
    """Request at one moment; a pause comes before a drain. None of both: nothing is asked for."""

    node: str
    pause: Pause | None = None
    drain: Drain | None = None

    def why(self, name: str) -> str:
        """Text that says who wants the GPU ``name`` to be released; empty if nobody does."""
        if self.pause is not None:
            return f"label {self.pause.label}"
        return _drained(self.drain) if self.drain is not None and self.drain.covers(name) else ""

    def why_node(self) -> str:
        """Text that says who wants all GPUs to be released; empty if nobody does."""
        if self.pause is not None:
            return f"label {self.pause.label}"
        return _drained(self.drain) if self.drain is not None and not self.drain.gpus else ""

    def text(self, gpu: KnownGpu, *, others_held: bool) -> str:
        """Text about a GPU that is released: what may be done with it, and what ends that."""
        why = self.why(gpu.name)
        if not others_held:
            return f"{_words(why, whole=True)}; {self._end(gpu.name)}"
        return (
            f"{_words(why, whole=False)} (nvidia-smi -r -i {gpu.uuid}); if that answers 'In use "
            "by another client', see who holds it (fuser -v /dev/nvidia*) or release all GPUs "
            f"(kubectl mig drain {self.node}); {self._end(gpu.name)}"
        )

    def text_of_node(self) -> str:
        """Text about a node of which every GPU is released."""
        return f"{_words(self.why_node() or 'drained', whole=True)}; {self._end()}"

    def _end(self, name: str = "") -> str:
        if self.pause is not None:
            return (
                f"back in service when {self.pause.label.partition('=')[0]} is true again or gone"
            )
        return f"kubectl mig resume {self.node}{f' {name}' if name else ''} ends it"


def _drained(drain: Drain) -> str:
    return f"drained: {drain.reason}" if drain.reason else "drained"


def _words(why: str, *, whole: bool) -> str:
    free = (
        "it may be reset, its MIG mode changed, the driver unloaded" if whole else "it may be reset"
    )
    return f"released ({why}): this plugin has nothing of it open, {free}"
