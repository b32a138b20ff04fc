"""Why a pod waits: one cluster for each reason, and what ``explain`` has to say first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.cli.explaining.obstacles import (
    affinity,
    all_taken,
    bad_cel,
    bad_config,
    by_scheduler,
    claim_missing,
    compute_slices_lack,
    cordoned,
    device_plugin,
    driver_not_ready,
    elsewhere,
    evaluating,
    foreign,
    gated,
    gpu_left_out,
    held_back,
    lease_ran_out,
    made_first,
    media_engine_taken,
    mig_manager,
    mig_off,
    mixed,
    mode_pending,
    no_class,
    no_leader,
    no_mignode,
    no_profile_that_large,
    not_ready,
    not_together,
    one_large_claim_in_the_way,
    quota,
    reclaimed_soon,
    reclaiming,
    selector,
    selects_nothing,
    tainted,
    taken_back,
    template_missing,
    too_little_cpu,
    too_many_of_one,
    too_many_templates,
)
from tests.cli.world import World


@dataclass(frozen=True)
class Situation:
    """A cluster in which pod ``waiting`` waits, and what its explanation has to say.

    ``says`` are words of the first finding: who or what is in the way.
    """

    name: str
    build: Callable[[World], None]
    reason: str
    says: tuple[str, ...]

    def __str__(self) -> str:
        return self.name


LEADS = (no_leader, lease_ran_out, taken_back, gpu_left_out, held_back, evaluating)

SITUATIONS = [
    Situation("no profile that large", no_profile_that_large, "NoSuchProfile", ("'r'", "7g.40gb")),
    Situation(
        "made before it is allocated",
        made_first,
        "MadeFirst",
        ("gpu-0-mig-3g20gb-9-4 on node node-a is being made", "default/wanted"),
    ),
    Situation("all taken", all_taken, "NoRoom", ("node-a gpu-0", "default/first", "pod trainer-1")),
    Situation(
        "the smallest claim in the way is named",
        one_large_claim_in_the_way,
        "NoRoom",
        ("gpu-1", "default/small of pod notebook (1g.5gb at 2:1)"),
    ),
    Situation("memory is free, compute is not", compute_slices_lack, "NoRoom", ("default/c0",)),
    Situation("MIG off", mig_off, "MIGDisabled", ("node-a gpu-0", "MIG is off")),
    Situation("MIG mode pending", mode_pending, "MIGModePending", ("node-a gpu-0",)),
    Situation("foreign", foreign, "ForeignInstance", ("gpu-0", "foreign", "7g.40gb at 0:8")),
    Situation("mig-manager", mig_manager, "MIGManagerActive", ("mig-manager",)),
    Situation("device plugin", device_plugin, "DevicePluginActive", ("nvidia.com/gpu: 8",)),
    Situation("reclaiming", reclaiming, "Reclaiming", ("default/gone", "in use by process 4711")),
    Situation("what goes anyway is named", reclaimed_soon, "Reclaiming", ("default/gone",)),
    Situation("engines lack", media_engine_taken, "NoRoom", ("default/video of pod encoder",)),
    Situation("tainted", tainted, "UntoleratedTaint", ("node-a", "team=red:NoSchedule")),
    Situation("cordoned", cordoned, "NodeUnschedulable", ("node-a",)),
    Situation("node not ready", not_ready, "NodeNotReady", ("node-a", "not-ready")),
    Situation("nodeSelector", selector, "NodeSelectorMismatch", ("node-a",)),
    Situation("node affinity", affinity, "NodeAffinityMismatch", ("node-a",)),
    Situation("cpu", too_little_cpu, "InsufficientResources", ("node-a", "insufficient cpu")),
    Situation("no controller", no_leader, "ControllerNotRunning", ("mig.dra.dev-controller",)),
    Situation("lease ran out", lease_ran_out, "ControllerNotRunning", ("has run out",)),
    Situation("plugin not serving", driver_not_ready, "DriverNotReady", ("no space left",)),
    Situation("bad configuration", bad_config, "InvalidConfig", ("placement.method", "wanted")),
    Situation("no such class", no_class, "NoSuchDeviceClass", ("'mig-9g.99gb'",)),
    Situation("selects nothing", selects_nothing, "NoSuchProfile", ("'r'",)),
    Situation("CEL that fails", bad_cel, "InvalidSelector", ("'r'", "colour")),
    Situation("gated", gated, "SchedulingGated", ("example.com/budget",)),
    Situation("template missing", template_missing, "TemplateMissing", ("default/slce",)),
    Situation("too many templates", too_many_templates, "TooManyTemplates", ("has 64",)),
    Situation("quota", quota, "ClaimNotCreated", ("exceeded quota: team",)),
    Situation("claim missing", claim_missing, "ClaimMissing", ("default/wanted",)),
    Situation("mixed drivers", mixed, "MixedDrivers", ("nic.example.com",)),
    Situation("not together", not_together, "NoRoomTogether", ("node-a",)),
    Situation(
        "too many of one",
        too_many_of_one,
        "UnsupportedRequest",
        ("3 x 3g.20gb can never be served", "none has more than 2, as node-a"),
    ),
    Situation("the scheduler allocates", by_scheduler, "AllocatedByScheduler", ("node-a",)),
    Situation("no MigNode", no_mignode, "NoMigNode", ("no MigNode exists",)),
    Situation("GPU left out", gpu_left_out, "WaitingForSlice", ("gpu-0 could not be made",)),
    Situation("held back", held_back, "NextInLine", ("held for pod default/large",)),
    Situation("evaluating", evaluating, "EvaluatingSelectors", ("are being evaluated",)),
    Situation("taken back", taken_back, "AllocationTakenBack", ("node node-a was taken back",)),
    Situation(
        "bound to a full node by another claim",
        elsewhere,
        "NoRoom",
        ("node-a", "default/first"),
    ),
]
