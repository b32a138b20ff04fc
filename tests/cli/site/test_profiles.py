"""``kubectl mig profiles``: what can be cut, in the words of nvidia-smi."""

from __future__ import annotations

from tests.cli.conftest import Mig
from tests.cli.world import World
from tests.controller.helpers.objects import gpu


def test_placements_and_what_is_free_can_be_read(world: World, mig: Mig) -> None:
    world.add_node("node-a", gpu(0, "node-a"), gpu(1, "node-a"))
    world.hold("train", "node-a", "gpu-0-mig-3g20gb-9-4", pod_name="trainer-0")
    rows = {line.split()[0]: line for line in mig("profiles").out.splitlines() if "mig-" in line}
    assert rows["1g.5gb"].split()[-6:] == ["{0,1,2,3,4,5,6}:1", "0", "11", "on", "2", "GPUs"]
    assert rows["1g.5gb+me"].endswith("2 on 2 GPUs"), "one a GPU, at whichever placement"
    assert rows["7g.40gb"].split()[-6:] == ["{0}:8", "0", "1", "on", "1", "GPU"]
