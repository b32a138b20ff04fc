"""Knowledge of a driver that the suite needs: a YAML file of some 15 lines."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import yaml


class Description(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A driver. Commands run in ``sh -c`` on the node, with ``{kubeconfig}``, ``{node}``,
    ``{kubelet}`` and ``{cdi}`` (their roots), ``{home}`` (an empty folder) and ``{python}`` put in.
    """

    name: str
    """As in ResourceSlices and allocations."""
    device_class: str
    """Each request of the suite is for one device of this class."""
    seen: str
    """Run in a container: a line for each device there, another for another device."""
    left: str
    """Prints what is prepared on the node; nothing once all pods are gone."""
    plugin: str = ""
    """The kubelet plugin. Without it the driver runs already, and is not killed or restarted."""
    second: str = ""
    """Flags with which a second plugin runs beside the first, as in a rolling update."""
    waits: bool = False
    """The second plugin registers once the first has ended, and not before."""
    programs: list[str] = []
    """Programs that have to run beside it."""
    before: str = ""
    """Run once before all of them."""
    objects: list[dict[str, Any]] = []
    files: list[str] = []
    """Objects, and files of objects in this repository, created first."""
    publishes: bool = True
    """False: the driver allocates by itself, and its ResourceSlices have no devices."""
    device_status: bool = False
    """The driver writes ``status.devices`` of the claim."""
    admin_class: str = ""
    """Class of requests with adminAccess, if the driver serves them."""
    breaks: str = ""
    mends: str = ""
    """Has each Prepare and Unprepare fail and no binding condition come true, and undoes that."""
    hangs: str = ""
    """Has each Prepare hang in the midst of its work; ``mends`` has it go on."""
    sickens: str = ""
    heals: str = ""
    """Has prepared devices be unhealthy, and undoes that."""
    binding_class: str = ""
    """Class of devices with ``bindingConditions``."""

    def objects_and_files(self, repository: Path) -> Iterable[dict[str, Any]]:
        """All objects to create."""
        yield from self.objects
        for name in self.files:
            yield from yaml.safe_load_all((repository / name).read_text())

    def can_be_asked_anywhere(self) -> bool:
        """False if its commands name what only a node of the suite has."""
        commands = (self.left, self.breaks, self.mends, self.hangs, self.sickens, self.heals)
        return not any(own in each for own in ("{home}", "{kubeconfig}") for each in commands)

    def missing(self, path: str) -> str:
        """Reason why the programs cannot be started from ``path``; empty if they can."""
        names = [c.split()[0] for c in (self.plugin, *self.programs) if c]
        absent = [n for n in names if n != "{python}" and shutil.which(n, path=path) is None]
        return f"no {', '.join(absent)} on PATH or in KUBEBUILDER_ASSETS" if absent else ""


def read(path: Path) -> Description:
    """The description in a file.

    Raises:
        ValueError: names the file and the field that is wrong or lacks.
    """
    try:
        return msgspec.convert(yaml.safe_load(path.read_text()), Description)
    except (OSError, yaml.YAMLError, msgspec.ValidationError) as error:
        fields = ", ".join(Description.__struct_fields__)
        raise ValueError(f"--driver {path}: {error}; fields: {fields}") from error
