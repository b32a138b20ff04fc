"""``matchAttribute``: devices that agree are found exactly when they exist, however many GPUs."""

from __future__ import annotations

from itertools import combinations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from controller.cluster.cluster import Cluster
from dra.allocator.allocate import Allocator
from dra.allocator.explain.answers import Detail
from dra.allocator.explain.judge import explain
from dra.allocator.problem import Decision
from dra.cel.kinds import Kinds
from dra.cel.selectors import Selectors
from dra.gpu.geometry import Occupant, Profile
from dra.gpu.inventory import Gpu
from tests.controller.helpers.deciding import decide, problem
from tests.controller.helpers.objects import (
    DRIVER,
    FINALIZER,
    claim,
    cluster,
    filled,
    gpu,
    mignode,
    node,
    request,
    with_gpus,
)
from tests.dra.gpus import A100

SAME_GPU = {"matchAttribute": "mig.dra.dev/parentUUID"}
ROOT = "resource.kubernetes.io/pcieRoot"
SWITCHES = ("pci0000:00", "pci0000:80", "")


def on_switches(node: str, *switches: str) -> list[Gpu]:
    """Empty GPUs below the given PCIe roots."""
    return [gpu(n, node, pcie_root=switch) for n, switch in enumerate(switches)]


def test_pairs_each_on_a_gpu_of_its_own_are_found_on_a_large_node() -> None:
    """GPUs to the power of pairs: more than anyone can try."""
    pairs = [(f"a{n}", f"b{n}") for n in range(6)]
    constraints = [{**SAME_GPU, "requests": [*pair]} for pair in pairs]
    constraints += [
        {"distinctAttribute": "mig.dra.dev/parentUUID", "requests": [one[0], other[0]]}
        for one, other in combinations(pairs, 2)
    ]
    requests = [request(name, "mig-3g.20gb") for pair in pairs for name in pair]
    full = [filled(n, *range(7)) for n in range(5)]
    wanted = claim("c", *requests, constraints=constraints)
    decision = decide(with_gpus(*full, *(gpu(n) for n in range(5, 11))), wanted)
    assert decision is not None
    on = {pick.request: pick.gpu for pick in decision.picks}
    assert all(on[a] == on[b] for a, b in pairs)
    assert len(set(on.values())) == 6
    assert decide(with_gpus(*full, *(gpu(n) for n in range(5, 10))), wanted) is None


def test_the_gpu_that_the_pairs_share_may_be_the_last() -> None:
    requests = [request(f"r{n}", "mig-1g.5gb") for n in range(6)]
    constraints = [{**SAME_GPU, "requests": [f"r{n}", f"r{n + 1}"]} for n in range(0, 6, 2)]
    gpus = [*(filled(n, 0, 1, 2, 4, 5, 6) for n in range(17)), gpu(17)]
    decision = decide(with_gpus(*gpus), claim("c", *requests, constraints=constraints))
    assert decision is not None
    assert {pick.gpu for pick in decision.picks} == {"gpu-17"}


def test_slices_below_one_switch_are_found_on_each_node_by_its_own_switches() -> None:
    """Nodes with GPUs in equal states are not alike where their wiring is compared."""
    apart = on_switches("node-a", "pci0000:00", "pci0000:80")
    together = on_switches("node-b", "pci0000:00", "pci0000:00")
    requests = [request("r", "mig-4g.20gb", count=2)]
    for kind, home in (("matchAttribute", "node-b"), ("distinctAttribute", "node-a")):
        known = cluster("node-a", "node-b")
        known.set_mignode(mignode("node-a", *apart))
        known.set_mignode(mignode("node-b", *together))
        decision = decide(known, claim("c", *requests, constraints=[{kind: ROOT}]))
        assert decision is not None
        assert decision.node == home


CLASSES = {
    "mig-1g.5gb": ("1g.5gb",),
    "mig-2g.10gb": ("2g.10gb",),
    "mig-3g.20gb": ("3g.20gb",),
    "mig-4g.20gb": ("4g.20gb",),
    "mig-min-20gb": ("3g.20gb", "4g.20gb", "7g.40gb"),
}
ATTRIBUTES = ("mig.dra.dev/parentUUID", "mig.dra.dev/profile", ROOT)
Constraint = tuple[bool, str, frozenset[int]]
"""Whether the same is wanted, or different; of what; and by which requests."""


@st.composite
def nodes(draw: st.DrawFn) -> dict[str, list[Gpu]]:
    found = {}
    for name in ("node-a", "node-b")[: draw(st.integers(1, 2))]:
        found[name] = [
            gpu(
                minor,
                name,
                pcie_root=draw(st.sampled_from(SWITCHES)),
                instances=filled(
                    minor, *draw(st.sampled_from([(), (0,), (4,), (2, 5), (0, 1, 2, 3)]))
                ).instances,
            )
            for minor in range(draw(st.integers(1, 3)))
        ]
    return found


CONSTRAINTS = st.lists(
    st.tuples(
        st.sampled_from([True, True, False]),
        st.sampled_from(ATTRIBUTES),
        st.frozensets(st.integers(0, 3), min_size=1),
    ),
    max_size=3,
)


def value(attribute: str, at: Gpu, profile: Profile) -> str:
    known = {"mig.dra.dev/parentUUID": at.uuid, "mig.dra.dev/profile": profile.name}
    return known.get(attribute, at.pcie_root)


def agree(constraint: Constraint, chosen: list[tuple[Gpu, Profile]]) -> bool:
    """Whether the devices chosen so far, one per request, satisfy a constraint."""
    same, attribute, members = constraint
    values = [value(attribute, *chosen[n]) for n in members if n < len(chosen)]
    return all(values) and len(set(values)) == (min(1, len(values)) if same else len(values))


def fits(gpus: list[Gpu], wanted: list[str], constraints: list[Constraint]) -> bool:
    """Whether one may choose devices one after the other; the plainest way to find out."""

    def rest(held: dict[int, list[Occupant]], chosen: list[tuple[Gpu, Profile]]) -> bool:
        if not all(agree(c, chosen) for c in constraints):
            return False
        if len(chosen) == len(wanted):
            return True
        profiles = [A100.by_name(name) for name in CLASSES[wanted[len(chosen)]]]
        return any(
            rest(
                {**held, at.minor: [*held[at.minor], Occupant(placement, profile.id)]},
                [*chosen, (at, profile)],
            )
            for at in gpus
            for profile in profiles
            if profile is not None
            for placement in A100.free_placements(A100.usage(held[at.minor]), profile)
        )

    return rest({g.minor: [i.occupant for i in g.instances] for g in gpus}, [])


def check(
    decision: Decision, gpus: list[Gpu], constraints: list[Constraint], wanted: list[str]
) -> None:
    """What was decided neither overlaps nor violates anything."""
    held = {g.name: [i.placement for i in g.instances] for g in gpus}
    chosen: dict[str, tuple[Gpu, Profile]] = {}
    for pick in decision.picks:
        profile = A100.by_name(pick.profile)
        assert pick.placement is not None
        assert profile is not None
        assert not any(pick.placement.overlaps(p) for p in held[pick.gpu])
        held[pick.gpu].append(pick.placement)
        chosen[pick.request] = next(g for g in gpus if g.name == pick.gpu), profile
    assert [chosen[f"r{n}"][1].name in CLASSES[c] for n, c in enumerate(wanted)].count(False) == 0
    assert all(agree(c, [chosen[f"r{n}"] for n in range(len(wanted))]) for c in constraints)


KNOWN = Cluster(DRIVER, FINALIZER, Kinds(Selectors()))
"""One for all examples: what a geometry is worth is worked out once."""


def known_nodes(fleet: dict[str, list[Gpu]]) -> Cluster:
    for name in ("node-a", "node-b"):
        KNOWN.set_node(node(name))
        KNOWN.remove_mignode(name)
    for name, gpus in fleet.items():
        KNOWN.set_mignode(mignode(name, *gpus))
    return KNOWN


@settings(max_examples=150, deadline=None)
@given(nodes(), st.lists(st.sampled_from([*CLASSES]), min_size=1, max_size=4), CONSTRAINTS)
@example(
    {"node-a": [filled(0, 0), filled(1, 4), gpu(2)]},
    ["mig-4g.20gb", "mig-2g.10gb", "mig-1g.5gb"],
    [(True, "mig.dra.dev/parentUUID", frozenset({0, 1, 2}))],
)
def test_devices_that_agree_are_found_exactly_when_they_exist(
    fleet: dict[str, list[Gpu]], wanted: list[str], constraints: list[Constraint]
) -> None:
    requests = [request(f"r{n}", name) for n, name in enumerate(wanted)]
    bound = [(s, a, frozenset(n for n in m if n < len(wanted))) for s, a, m in constraints]
    bound = [c for c in bound if c[2]]
    stated = [
        {
            "matchAttribute" if same else "distinctAttribute": attribute,
            "requests": [f"r{n}" for n in sorted(members)],
        }
        for same, attribute, members in bound
    ]
    known = known_nodes(fleet)
    asked = problem(known, claim("c", *requests, constraints=stated))
    allocator = Allocator(known.fleet, known.hosts)
    decision = allocator.decide(asked)
    possible = {name for name, gpus in fleet.items() if fits(gpus, wanted, bound)}
    assert (decision is not None) == bool(possible)
    told = explain(asked, allocator, detail=Detail.FULL)
    assert {name for name, answer in told.nodes.items() if answer.fits} == possible
    if decision is not None:
        assert decision.node in possible
        check(decision, fleet[decision.node], bound, wanted)
