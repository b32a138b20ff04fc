"""Operations of the node program that are interrupted, each on a node that others use too."""

from __future__ import annotations

from collections.abc import Mapping

from tests.failures.interrupted.operations import (
    change_layout,
    give_back,
    kept,
    make_ahead,
    prepare,
    start,
    unprepare,
)
from tests.failures.interrupted.scene import (
    BESIDE_DECLARED,
    DECLARED,
    IN_THE_WAY,
    MPS,
    SHARE,
    SHARED,
    TARGET,
    TURNS,
    TWO_GPUS,
    WHOLE,
    Scenario,
)
from tests.failures.interrupted.setups import (
    ahead,
    both,
    half_ahead,
    half_made,
    lost,
    only_neighbour,
    rebooted,
)

SCENARIOS: Mapping[str, Scenario] = {
    "prepare one slice": Scenario(TARGET, only_neighbour, prepare),
    "prepare two slices on two GPUs": Scenario(TWO_GPUS, only_neighbour, prepare),
    "prepare again after a reboot": Scenario(TWO_GPUS, rebooted, prepare, neighbour_waits=True),
    "make again two slices that were lost": Scenario(TWO_GPUS, lost, prepare),
    "unprepare one slice": Scenario(TARGET, both, unprepare, wanted=False),
    "unprepare two slices on two GPUs": Scenario(TWO_GPUS, both, unprepare, wanted=False),
    "recover a slice that is half made": Scenario(TARGET, half_made, start, starts=False),
    "make ahead two slices on two GPUs": Scenario(
        TWO_GPUS, only_neighbour, make_ahead, awaited=True
    ),
    "meet two slices that were made ahead": Scenario(TWO_GPUS, ahead, prepare),
    "give back two slices that were made ahead": Scenario(
        TWO_GPUS, ahead, give_back, wanted=False, awaited=True
    ),
    "recover a slice that is half made ahead": Scenario(TARGET, half_ahead, start, starts=False),
    "keep the GPU instances of two slices": Scenario(
        TWO_GPUS, both, unprepare, wanted=False, keeps=True
    ),
    "use again two GPU instances that were kept": Scenario(
        TWO_GPUS, only_neighbour, prepare, prelude=kept(*TWO_GPUS), keeps=True
    ),
    "replace two GPU instances that were kept": Scenario(
        TWO_GPUS, only_neighbour, prepare, prelude=kept(*IN_THE_WAY), keeps=True
    ),
    "share a slice that another claim has": Scenario(SHARED, only_neighbour, prepare),
    "leave a slice to another claim": Scenario(SHARED, both, unprepare, wanted=False),
    "unprepare the last share of a slice": Scenario(SHARE, both, unprepare, wanted=False),
    "make ahead a share of a slice that another claim has": Scenario(
        SHARED, only_neighbour, make_ahead, awaited=True
    ),
    "give back a share of a slice that another claim has": Scenario(
        SHARED, ahead, give_back, wanted=False, awaited=True
    ),
    "prepare a slice with an MPS daemon": Scenario(TARGET, only_neighbour, prepare, sharing=MPS),
    "unprepare a slice with an MPS daemon": Scenario(
        TARGET, both, unprepare, wanted=False, sharing=MPS
    ),
    "prepare a GPU with time slices": Scenario(WHOLE, only_neighbour, prepare, sharing=TURNS),
    "unprepare a GPU with time slices": Scenario(
        WHOLE, both, unprepare, wanted=False, sharing=TURNS
    ),
    "change the layout of a GPU": Scenario(
        TARGET,
        only_neighbour,
        change_layout,
        layouts=("{2g.10gb: 1}", "{3g.20gb: 1}"),
        ready=(BESIDE_DECLARED,),
    ),
    "take a slice of a layout": Scenario(
        DECLARED,
        only_neighbour,
        prepare,
        layouts=("{3g.20gb: 2}", "{3g.20gb: 2}"),
        ready=(BESIDE_DECLARED,),
    ),
    "leave a slice of a layout": Scenario(
        DECLARED,
        both,
        unprepare,
        wanted=False,
        layouts=("{3g.20gb: 2}", "{3g.20gb: 2}"),
        ready=(BESIDE_DECLARED,),
    ),
}
