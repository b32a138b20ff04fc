"""A drawing of what sits where on a node's GPUs. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dra.inventory import ClaimRef, Gpu, Instance, InstanceState, Inventory

_WIDTH = 64
_CELL = range(4, 10)  # columns that one memory slice may take, its border included
_RESET = "\x1b[0m"
# Background per compute slices, so that sizes are told apart at a glance; black text.
_COLORS = {1: 114, 2: 117, 3: 222, 4: 216, 7: 183}
_OTHER_COLOR = 250


@dataclass(frozen=True, slots=True)
class Style:
    """How to draw. ``color`` uses terminal escapes; ``ascii_only`` no character beyond ASCII."""

    color: bool = False
    ascii_only: bool = False

    @property
    def border(self) -> str:
        """Between instances."""
        return "|" if self.ascii_only else "│"

    @property
    def dot(self) -> str:
        """Between free memory slices."""
        return "." if self.ascii_only else "·"

    @property
    def cut(self) -> str:
        """Marks text that does not fit."""
        return "~" if self.ascii_only else "…"


def draw(
    inventory: Inventory,
    *,
    owner: Callable[[ClaimRef], str] = lambda claim: claim.name,
    style: Style | None = None,
) -> str:
    """The GPUs of one node, two lines each: profiles, and who holds them.

    ``owner`` says what to write for a claim. The columns are memory slices. An instance that is not
    simply in use shows its state instead of an owner.
    """
    style = style or Style()
    lines = [_header(inventory)]
    for gpu in inventory.gpus:
        lines += _gpu(gpu, owner, style)
    return "\n".join(lines)


def _header(inventory: Inventory) -> str:
    gpu = next((g for g in inventory.gpus if g.geometry is not None), None)
    if gpu is None or gpu.geometry is None:
        return inventory.node
    slices = gpu.geometry.memory_slices
    cell = _cell(slices)
    numbers = "".join(str(n).ljust(cell) for n in range(slices))
    return f"{inventory.node:<8}{numbers} {gpu.product_name.removeprefix('NVIDIA ')}".rstrip()


def _gpu(gpu: Gpu, owner: Callable[[ClaimRef], str], style: Style) -> list[str]:
    label = f" {gpu.name:<6}"
    if gpu.geometry is None or not gpu.geometry.memory_slices:
        return [f"{label}{style.border} {gpu.unavailable or 'no MIG'}"]
    slices = gpu.geometry.memory_slices
    cell = _cell(slices)
    profiles = owners = style.border
    at = 0
    for instance in sorted(gpu.instances, key=lambda i: i.placement):
        free = _free(instance.placement.start - at, cell, style)
        width = instance.placement.size * cell - 1
        texts = instance.profile or "?", _second_line(instance, owner)
        first, second = (_paint(text, width, _color(gpu, instance), style) for text in texts)
        profiles += free + first + style.border
        owners += free + second + style.border
        at = instance.placement.start + instance.placement.size
    rest = _free(slices - at, cell, style)
    note = f" {gpu.unavailable}" if gpu.unavailable else ""
    return [f"{label}{profiles}{rest}{note}".rstrip(), f"{'':7}{owners}{rest}".rstrip()]


def _second_line(instance: Instance, owner: Callable[[ClaimRef], str]) -> str:
    if instance.state is InstanceState.PREPARED and instance.claim is not None:
        return owner(instance.claim)
    return instance.state.value


def _free(slices: int, cell: int, style: Style) -> str:
    """Free memory slices, closed by a border."""
    if slices <= 0:
        return ""
    inside = (" " * (cell - 1) + style.dot) * slices
    return inside[:-1] + style.border


def _paint(text: str, width: int, color: int, style: Style) -> str:
    if len(text) > width:
        text = text[: width - 1] + style.cut
    text = text.ljust(width)
    return f"\x1b[30;48;5;{color}m{text}{_RESET}" if style.color else text


def _color(gpu: Gpu, instance: Instance) -> int:
    if gpu.geometry is None or instance.profile_id is None:
        return _OTHER_COLOR
    profile = gpu.geometry.by_id(instance.profile_id)
    return _COLORS.get(profile.compute_slices, _OTHER_COLOR) if profile else _OTHER_COLOR


def _cell(slices: int) -> int:
    return max(_CELL.start, min(_CELL.stop - 1, _WIDTH // slices))
