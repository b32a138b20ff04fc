"""What the teller of a random story knows: the node, the claims, what kubelet was told."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis.stateful import Bundle, RuleBasedStateMachine

import sim.nvml
from dra.gpu.geometry import Placement
from dra.gpu.inventory import ClaimRef
from dra.gpu.names import MigDevice, parse_device
from sim.nvml.products import Variants
from tests.failures.helpers.plant import WITHIN_SECONDS, Plant
from tests.failures.helpers.site import Site
from tests.failures.helpers.steps import StepRecorder, hooked
from tests.helpers.folders import MEMORY

GPUS = 3
SHAPES = {
    "1g5gb-19": (1, range(7)),
    "2g10gb-14": (2, (0, 2, 4)),
    "3g20gb-9": (4, (0, 4)),
    "7g40gb-0": (8, (0,)),
}
_SIZES = {label: size for label, (size, _) in SHAPES.items()}
_HUNG_SECONDS = 0.05


@dataclass(eq=False, slots=True)
class Known:
    """A claim as its user and kubelet know it.

    ``told``: kubelet was told that it is prepared, and has not asked to take it back. ``keys`` are
    its instances on the hardware then, less those that somebody or a reset has taken since.
    ``tried``: kubelet has asked for it, and would ask to take it back. ``awaited``: kube-scheduler
    binds its pod only once its slices are made.
    """

    ref: ClaimRef
    devices: tuple[str, ...]
    live: bool = True
    tried: bool = False
    told: bool = False
    awaited: bool = False
    keys: dict[str, int] = field(default_factory=dict)

    def gpus(self) -> set[int]:
        """The GPUs that it is on."""
        return {place(d)[0] for d in self.devices}


def place(device: str) -> tuple[int, Placement]:
    """The GPU and the memory slices that a device's name means on an A100."""
    parsed = parse_device(device)
    assert isinstance(parsed, MigDevice)
    size = _SIZES[f"{parsed.profile_label}-{parsed.profile_id}"]
    return parsed.minor, Placement(parsed.start, size)


claims: Bundle[Known] = Bundle("claims")


class Counter:
    """Steps that were run, over all machines of this process."""

    steps = 0


class Story(RuleBasedStateMachine):
    """A node with three GPUs, a kubelet, users, an administrator and bad luck.

    ``variants`` is in which way its driver behaves, ``idle_seconds`` the program's option. With
    ``binds_late`` kube-scheduler waits for the slices of some claims. With ``shares`` several
    claims have one slice.
    """

    variants = Variants()
    idle_seconds = 0.0
    binds_late = False
    shares = False

    def __init__(self) -> None:
        super().__init__()
        logging.disable(logging.CRITICAL)
        self.folder = Path(tempfile.mkdtemp(prefix="any-", dir=MEMORY))
        self.site = Site.create(
            self.folder / "n", gpus=GPUS, variants=self.variants, idle_seconds=self.idle_seconds
        )
        self.machine = self.site.machine
        self.recorder = StepRecorder(in_process=True)
        self._hooks = hooked(self.recorder)
        self._hooks.__enter__()
        self.known: list[Known] = []
        self.foreign: set[int] = set()
        self.hung: set[int] = set()
        self.faulty = False
        self.full = False
        self.api_down = False
        self.pids: list[int] = []
        self.specs_lost = False
        self.plant = self.new_plant()

    # -- the program

    def new_plant(self) -> Plant:
        plant = Plant(self.site, self.recorder)
        plant.api_down = self.api_down
        plant.start()
        plant.daemon.node.outcomes.registered()
        return plant

    def restart(self) -> None:
        """The process is dead; another one starts."""
        self.end()
        self.recorder.disarm()
        self.plant = self.new_plant()

    def end(self) -> None:
        """Kill the process. It is dead, and its lock free, once no call of it hangs in the driver.

        A call that hung comes to its end then: what it makes is there before the next process is.
        """
        self.recorder.die()
        self.release_hung()
        wait_until(lambda: not self.recorder.busy)
        sim.nvml.end()

    def release_hung(self) -> None:
        for gpu in self.hung:
            self.machine.clear_faults(f"hang-{gpu}")
        self.hung.clear()

    def within(self, claim: Known) -> float:
        return _HUNG_SECONDS if claim.gpus() & self.hung else WITHIN_SECONDS

    @property
    def undisturbed(self) -> bool:
        """Nothing is wrong with NVML, disk and API."""
        return not (self.faulty or self.full or self.api_down or self.hung)

    @property
    def well(self) -> bool:
        """Undisturbed, and no process holds a slice."""
        return self.undisturbed and not any(g.processes for g in self.machine.state().gpus)


def wait_until(check: Callable[[], bool], *, timeout: float = WITHIN_SECONDS) -> None:
    """Wait for threads of a process that is dead to notice it."""
    end = time.monotonic() + timeout
    while not check():
        assert time.monotonic() < end, "threads of a dead process go on"
        time.sleep(0.001)
