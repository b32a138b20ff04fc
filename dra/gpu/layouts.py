"""Layouts: the mode of a node, the declared geometry of each of its GPUs, and where slices lie."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import yaml

from api.errors import InvalidObjectError
from api.nodeclass import (
    KIND,
    MODES,
    Layout,
    LayoutEntry,
    NodeClass,
    decode_layouts,
    decode_node_class,
    is_layouts,
)
from dra.gpu.geometry import Geometry, Occupant, Profile, Usage

CONFIG_LABEL = "nvidia.com/mig.config"
"""Label by which users of mig-manager choose a layout."""
_OPERATORS_OWN = "all-disabled"
DEFAULT_CLASS = "default"


def mode_label(driver: str) -> str:
    """The label of a Node that says its mode."""
    return f"{driver}/mode"


def class_label(driver: str) -> str:
    """Key of the label by which a Node names its node class."""
    return f"{driver}/node-class"


@dataclass(frozen=True, slots=True)
class Classes:
    """Node classes and layouts, as read from files.

    ``classes``: by name. ``layouts``: those of mig-parted's files, by name. ``problems``: what is
    wrong with a file, by the name of the class that it would have made.
    """

    classes: Mapping[str, NodeClass]
    layouts: Mapping[str, Layout]
    problems: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Choice:
    """Mode of a node, with its layout; ``problem`` says in words why it is not known.

    ``entries``: those of the layout called ``layout``. ``shares``, ``slice_shares``: those of the
    class. ``passing``: the problem ends by itself.
    """

    mode: str
    layout: str = ""
    mig_mode: str = "keep"
    entries: Layout = ()
    problem: str = ""
    shares: int = 1
    slice_shares: int = 1
    passing: bool = False

    def of_gpu(self, index: int, *, device: int, subsystem: int) -> LayoutEntry | None:
        """The declared geometry of a GPU; None where slices are made for claims.

        Of several entries that cover the GPU the last counts, as with mig-parted.
        """
        found = [e for e in self.entries if e.covers(index, device=device, subsystem=subsystem)]
        return found[-1] if found else None


def choose(labels: Mapping[str, str], known: Classes, *, driver: str) -> Choice:
    """The choice for a Node: its ``labels`` go before its class.

    A Node with the label of mig-manager has the mode ``layout`` and that layout, unless another
    label says its mode. The value ``all-disabled``, which the GPU operator gives each Node without
    the label, counts only if there is a layout of that name.
    """
    name = labels.get(class_label(driver), DEFAULT_CLASS)
    config = labels.get(CONFIG_LABEL, "")
    found = known.classes.get(name)
    if found is None and (name != DEFAULT_CLASS or name in known.problems):
        there = ", ".join(sorted(known.classes)) or "none"
        problem = known.problems.get(name) or (
            f"label {class_label(driver)}: there is no class {name!r} of nodes; there are: {there}"
        )
        return Choice("", config, problem=problem)
    node_class = found or NodeClass()
    layouts = {**known.layouts, **node_class.layouts}
    if config == _OPERATORS_OWN and config not in layouts:
        config = ""
    mode = labels.get(mode_label(driver)) or ("layout" if config else node_class.mode)
    layout = config or node_class.layout
    choice = Choice(
        mode,
        layout if mode == "layout" else "",
        node_class.mig_mode,
        shares=node_class.shares,
        slice_shares=node_class.slice_shares,
    )
    if mode not in MODES:
        problem = f"label {mode_label(driver)}: {mode!r} is not allowed; allowed are: "
        return replace(choice, problem=problem + ", ".join(MODES))
    if mode != "layout":
        return choice
    if not layout:
        return replace(
            choice,
            problem=f"the mode is 'layout' and no layout is named; set the label {CONFIG_LABEL}, "
            f"or the field layout of the class {name!r}",
        )
    if layout not in layouts:
        there = ", ".join(sorted(layouts)) or "none"
        also = "".join(f"; {text}" for text in known.problems.values())
        where = f"label {CONFIG_LABEL}" if config else f"field layout of the class {name!r}"
        problem = f"{where}: there is no layout {layout!r}; there are: {there}{also}"
        return replace(choice, problem=problem)
    return replace(choice, entries=layouts[layout])


SUFFIXES: Final = (".yaml", ".yml", ".json")
"""Ends of the names of the files that are read; other files of a directory are ignored."""


def read_file(text: str | bytes) -> NodeClass | dict[str, Layout]:
    """The class of nodes in a file; or, of a file of mig-parted's, the layouts by name.

    Raises:
        InvalidObjectError: it is neither; names the field and what is allowed.
    """
    try:
        obj: Any = yaml.load(text, Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidObjectError(KIND, "", f"no YAML: {' '.join(str(error).split())}") from error
    return decode_layouts(obj) if is_layouts(obj) else decode_node_class(obj)


def read_files(files: Iterable[tuple[str, bytes | OSError]]) -> Classes:
    """Classes, layouts and problems of ``files``, given by name and content, or error of reading.

    A class is called like its file, without the suffix.
    """
    classes: dict[str, NodeClass] = {}
    layouts: dict[str, Layout] = {}
    problems: dict[str, str] = {}
    for name, content in files:
        stem = name.rpartition(".")[0]
        try:
            if isinstance(content, OSError):
                raise content
            found = read_file(content)
        except (OSError, InvalidObjectError) as error:
            problems[stem] = f"{name}: {error}"
            continue
        if isinstance(found, NodeClass):
            classes[stem] = found
        else:
            layouts |= found
    return Classes(classes, layouts, problems)


_MOST_SLICES = 64


class PlacingError(ValueError):
    """Slices that a GPU cannot have; says which and what it could have."""


def place(
    geometry: Geometry,
    counts: Iterable[tuple[str, int]],
    present: Collection[Occupant] = (),
    *,
    foreign: Collection[Occupant] = (),
) -> tuple[Occupant, ...]:
    """Placements for the slices in ``counts``, which has profile and number; sorted by start.

    The first of these ways that leaves room for all is taken: keep the slices ``present`` and avoid
    those ``foreign``; avoid those ``foreign``; keep those ``present``; neither.

    Raises:
        PlacingError: the GPU lacks a profile, or they do not fit beside each other.
    """
    wanted = _profiles(geometry, counts)
    for keeping, clear in ((present, foreign), ((), foreign), (present, ()), ((), ())):
        taken = geometry.usage(clear)
        kept, rest = _kept(geometry, wanted, keeping, taken)
        found = _search(geometry, rest, _with(geometry, taken, kept))
        if found is not None:
            return tuple(sorted([*kept, *found], key=lambda o: o.placement))
    names = ", ".join(f"{count} x {name}" for name, count in counts)
    raise PlacingError(f"{names} do not fit on it together")


def _with(geometry: Geometry, usage: Usage, occupants: Iterable[Occupant]) -> Usage:
    for occupant in occupants:
        usage = geometry.add(usage, occupant)
    return usage


def _profiles(geometry: Geometry, counts: Iterable[tuple[str, int]]) -> list[Profile]:
    """A profile for each slice, the largest first."""
    wanted: list[Profile] = []
    for name, count in counts:
        profile = geometry.by_name(name)
        if profile is None:
            has = ", ".join(p.name for p in geometry.profiles) or "none"
            smaller = (
                "; compute instances smaller than their GPU instance are not made here"
                if "c." in name
                else ""
            )
            raise PlacingError(f"it has no profile {name}{smaller}; it has: {has}")
        wanted += [profile] * min(count, _MOST_SLICES)
    order = {p.id: n for n, p in enumerate(geometry.largest_first)}
    return sorted(wanted, key=lambda p: order[p.id])


def _kept(
    geometry: Geometry, wanted: Sequence[Profile], present: Iterable[Occupant], usage: Usage
) -> tuple[list[Occupant], list[Profile]]:
    """Wanted instances of ``present`` that fit beside ``usage``; and the profiles still wanted."""
    kept: list[Occupant] = []
    rest = [*wanted]
    for occupant in sorted(present, key=lambda o: o.placement):
        profile = next((p for p in rest if p.id == occupant.profile_id), None)
        if (
            profile is not None
            and occupant.placement in profile.placements
            and geometry.fits(usage, profile, occupant.placement)
        ):
            kept.append(occupant)
            rest.remove(profile)
            usage = geometry.add(usage, occupant)
    return kept, rest


def _search(
    geometry: Geometry, wanted: Sequence[Profile], usage: Usage, first: int = 0
) -> list[Occupant] | None:
    """Placements for ``wanted`` in its order, or None; equal profiles get rising starts."""
    if not wanted:
        return []
    profile, rest = wanted[0], wanted[1:]
    for placement in sorted(geometry.free_placements(usage, profile)):
        if placement.start < first:
            continue
        occupant = Occupant(placement, profile.id)
        after = placement.start + 1 if rest and rest[0].id == profile.id else 0
        found = _search(geometry, rest, geometry.add(usage, occupant), after)
        if found is not None:
            return [occupant, *found]
    return None
