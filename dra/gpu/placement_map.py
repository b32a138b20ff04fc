"""Drawing of the instances on a GPU, one column per memory slice. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TextIO

from dra.gpu.geometry import Placement
from dra.gpu.inventory import ClaimRef, Gpu, Instance, InstanceState, Inventory

WIDTH = 64
"""Columns for the memory slices of a GPU, unless told otherwise."""

LABEL_WIDTH = 7
"""Columns for the GPU's name and the border before its first memory slice."""

_CELL = range(4, 25)  # columns that one memory slice may take, its border included
_RESET = "\x1b[0m"
# Background per compute slices, so that sizes are told apart at a glance; black text.
_COLORS = {1: 114, 2: 117, 3: 222, 4: 216, 7: 183}
_OTHER_COLOR = 250
_NOT_OURS = 245
_TROUBLE = 203
_NOT_USABLE = frozenset(
    {InstanceState.RECLAIMING.value, InstanceState.ORPHAN.value, InstanceState.LOST.value}
)


@dataclass(frozen=True, slots=True)
class Style:
    """Drawing style. ``color`` uses terminal escapes; ``ascii_only`` no character beyond ASCII."""

    color: bool = False
    ascii_only: bool = False

    @classmethod
    def of(cls, stream: TextIO, environ: Mapping[str, str]) -> Style:
        """Style for a stream: colour on a terminal, unless NO_COLOR is set or TERM is dumb."""
        encoding = (getattr(stream, "encoding", None) or "ascii").lower()
        return cls(
            color=stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb",
            ascii_only=not encoding.startswith("utf"),
        )

    @property
    def border(self) -> str:
        """Between instances."""
        return "|" if self.ascii_only else "│"

    @property
    def dot(self) -> str:
        """Between free memory slices."""
        return "." if self.ascii_only else "·"

    @property
    def hatch(self) -> str:
        """Fills what is free and cannot be used."""
        return "/" if self.ascii_only else "░"

    @property
    def cut(self) -> str:
        """Marks text that does not fit."""
        return "~" if self.ascii_only else "…"


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring memory slices with one holder, as drawn: two lines above each other.

    ``label``: text of the upper line. ``owner``: text of the lower line. ``color``: background, one
    of the 256 colours of terminals.
    """

    placement: Placement
    label: str
    owner: str
    color: int = _OTHER_COLOR


def draw(
    inventory: Inventory,
    *,
    owner: Callable[[ClaimRef], str] = lambda claim: claim.name,
    style: Style | None = None,
) -> str:
    """The GPUs of one node, two lines each: profiles, and their holders.

    ``owner`` returns the text for a claim. An instance that is not simply in use shows its state
    instead.
    """
    style = style or Style()
    gpu = next((g for g in inventory.gpus if g.geometry is not None), None)
    if gpu is None or gpu.geometry is None:
        lines = [inventory.node]
    else:
        product = gpu.product_name.removeprefix("NVIDIA ")
        lines = [f"{scale(gpu.geometry.memory_slices, label=inventory.node)} {product}".rstrip()]
    for each in inventory.gpus:
        segments = [_segment(each, instance, owner) for instance in each.instances]
        lines += draw_gpu(
            each,
            segments,
            style=style,
            notes=(each.unavailable,),
            shade="" if each.unavailable else None,
        )
    return "\n".join(lines)


def scale(slices: int, *, label: str = "", width: int = WIDTH) -> str:
    """The numbers of the memory slices, above the GPUs."""
    cell = _cell(slices, width)
    return f"{label:<{LABEL_WIDTH}}" + "".join(str(n).ljust(cell) for n in range(slices))


def draw_gpu(  # noqa: PLR0913 - the GPU, and how to draw it
    gpu: Gpu,
    segments: Iterable[Segment],
    *,
    style: Style,
    width: int = WIDTH,
    notes: tuple[str, ...] = (),
    shade: str | None = None,
) -> list[str]:
    """Two lines: held parts, and their holders. ``notes`` stand behind the first and the second.

    ``shade``: the free slices cannot be used and are shaded, with this text where there is room;
    None if they can be used. A GPU whose slices are not known is one line with the first note.
    """
    label = f"{gpu.name:<{LABEL_WIDTH - 1}}"
    first_note, second_note = ((*notes, "", "")[0], (*notes, "", "")[1])
    if gpu.geometry is None or not gpu.geometry.memory_slices:
        return [f"{label}{style.border} {first_note or 'no MIG'}"]
    slices = gpu.geometry.memory_slices
    cell = _cell(slices, width)
    upper = lower = style.border
    second = None if shade is None else ""
    at = 0
    for segment in sorted(segments, key=lambda s: s.placement):
        free, room = segment.placement.start - at, segment.placement.size * cell - 1
        upper += _free(free, cell, style, shade)
        upper += paint(segment.label, room, segment.color, style) + style.border
        lower += _free(free, cell, style, second)
        lower += paint(segment.owner, room, segment.color, style) + style.border
        at = segment.placement.start + segment.placement.size
    upper += _free(slices - at, cell, style, shade)
    lower += _free(slices - at, cell, style, second)
    blank = " " * (LABEL_WIDTH - 1)
    return [f"{label}{upper} {first_note}".rstrip(), f"{blank}{lower} {second_note}".rstrip()]


def sample(text: str, compute_slices: int, style: Style) -> str:
    """``text`` in the colour of instances of so many compute slices; as it is without colours."""
    return paint(text, len(text), _COLORS.get(compute_slices, _OTHER_COLOR), style)


def color_of(state: str, compute_slices: int) -> int:
    """The colour of an instance: by its size, or by its trouble; one for foreign instances."""
    if state == InstanceState.FOREIGN:
        return _NOT_OURS
    return _TROUBLE if state in _NOT_USABLE else _COLORS.get(compute_slices, _OTHER_COLOR)


def paint(text: str, width: int, color: int, style: Style) -> str:
    """``text`` in exactly ``width`` columns, on a background where colours are wanted."""
    if len(text) > width:
        tail = (width - 1) // 2  # of names that begin alike the end tells them apart
        text = text[: width - 1 - tail] + style.cut + text[len(text) - tail :]
    text = text.ljust(width)
    return f"\x1b[30;48;5;{color}m{text}{_RESET}" if style.color else text


def compute_slices(gpu: Gpu, profile_id: int | None) -> int:
    """Compute slices of a profile of the GPU; 0 for a profile that it lacks."""
    if gpu.geometry is None or profile_id is None:
        return 0
    profile = gpu.geometry.by_id(profile_id)
    return profile.compute_slices if profile else 0


def _segment(gpu: Gpu, instance: Instance, owner: Callable[[ClaimRef], str]) -> Segment:
    in_use = instance.state is InstanceState.PREPARED and instance.claim is not None
    return Segment(
        instance.placement,
        instance.profile or "?",
        owner(instance.claim) if in_use and instance.claim else instance.state.value,
        color_of(instance.state.value, compute_slices(gpu, instance.profile_id)),
    )


def _free(slices: int, cell: int, style: Style, shade: str | None) -> str:
    """Free memory slices, closed by a border."""
    if slices <= 0:
        return ""
    if shade is not None:
        room = slices * cell - 1
        word = f" {shade} " if shade and len(shade) + 2 <= room else ""
        return word.center(room, style.hatch) + style.border
    inside = (" " * (cell - 1) + style.dot) * slices
    return inside[:-1] + style.border


def _cell(slices: int, width: int) -> int:
    return max(_CELL.start, min(_CELL.stop - 1, width // slices))
