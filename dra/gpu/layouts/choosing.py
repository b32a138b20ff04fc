"""Mode of a node, and what its labels and its class say of each of its GPUs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from api.layouts import Layout, LayoutEntry
from api.nodeclass import MODES, NodeClass

CONFIG_LABEL = "nvidia.com/mig.config"
"""Label by which users of mig-manager choose a layout."""
_OPERATORS_OWN = "all-disabled"
DEFAULT_CLASS = "default"


def mode_label(driver: str) -> str:
    """The label of a Node that says its mode."""
    return f"{driver}/mode"


def class_label(driver: str) -> str:
    """The label of a Node that names its class."""
    return f"{driver}/node-class"


@dataclass(frozen=True, slots=True)
class Classes:
    """The classes by name, and the layouts of files of mig-parted's.

    ``problems`` are what is wrong with files, by the name of the class that one would be.
    """

    classes: Mapping[str, NodeClass]
    layouts: Mapping[str, Layout]
    problems: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Choice:
    """Mode of a node, with its layout; ``problem`` says in words why it is not known.

    ``entries`` are those of the layout called ``layout``; ``shares``, ``slice_shares`` and
    ``hami_core`` are those of the class. ``passing``: the problem ends by itself.
    """

    mode: str
    layout: str = ""
    mig_mode: str = "keep"
    entries: Layout = ()
    problem: str = ""
    shares: int = 1
    hami_core: str = ""
    slice_shares: int = 1
    passing: bool = False

    def of_gpu(self, index: int, *, device: int, subsystem: int) -> LayoutEntry | None:
        """The declared geometry of a GPU; None where slices are made for claims.

        Of several that are about it the last counts, as with mig-parted.
        """
        found = [e for e in self.entries if e.covers(index, device=device, subsystem=subsystem)]
        return found[-1] if found else None


def choose(labels: Mapping[str, str], known: Classes, *, driver: str) -> Choice:
    """The choice for a Node with ``labels``, which go before its class.

    A node with the label of mig-manager is one with that layout, unless another label says its
    mode. The value ``all-disabled``, which the GPU operator gives each node without the label,
    chooses only a layout that there is.
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
        hami_core=node_class.hami_core,
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
