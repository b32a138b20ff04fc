"""Duration of the controller's decision: ``python -m hack.bench.allocate``.

The controller's own index and allocator, fed with objects as the API server sends them: nodes of
eight GPUs filled to a share with claims, then one pod after another is decided, allocated and an
old one released. Claims for one slice come first, then others, which are listed in ``ASKED``.
Compare the rows of one run; milliseconds are of this machine, ``cpu`` those that the decision
itself took of it, whatever else was running.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from statistics import quantiles
from typing import Any

import click

from dra.common.resources import Obj
from dra.gpu.names import DEFAULT_DRIVER, class_name
from hack.bench.fleets.decisions import Bench, Timed
from hack.bench.fleets.fleet import geometry
from hack.bench.fleets.scenarios import MIXES, sizes
from hack.bench.memory import resident_mib

PARENT = f"{DEFAULT_DRIVER}/parentUUID"


def asked(profiles: list[str]) -> Mapping[str, Obj | None]:
    """The specs of claims to time, by a word for each; None is one slice of the mix."""
    small, *_, large = profiles
    four, two = (next((p for p in profiles if p.startswith(n)), small) for n in ("4g", "2g"))
    least = "device.capacity['mig.dra.dev'].memory.compareTo(quantity('12Gi')) >= 0"
    by_size = {"deviceClassName": DEFAULT_DRIVER, "selectors": [{"cel": {"expression": least}}]}
    either = [
        {"name": name, "deviceClassName": class_name(profile)}
        for name, profile in (("rather", large), ("or", small))
    ]
    return {
        "slice": None,
        "together": _spec(_one("a", four), _one("b", two), _one("c", small), matchAttribute=PARENT),
        "apart": _spec(_one("a", two), _one("b", two), distinctAttribute=PARENT),
        "either": _spec({"name": "a", "firstAvailable": either}),
        "by-size": _spec({"name": "a", "exactly": by_size}),
        "refused": _spec(_one("a", large, count=9)),
    }


def _one(name: str, profile: str, **more: Any) -> Obj:
    return {"name": name, "exactly": {"deviceClassName": class_name(profile), **more}}


def _spec(*requests: Obj, **constraint: str) -> Obj:
    constraints = {"constraints": [constraint]} if constraint else {}
    return {"devices": {"requests": [*requests], **constraints}}


def _row(bench: Bench, what: str, times: list[Timed]) -> str:
    wall = quantiles((t.wall for t in times), n=100)
    cpu = quantiles((t.cpu for t in times), n=100)
    placed = sum(t.placed for t in times) / len(times)
    return (
        f"{bench.nodes:>7}{bench.claims:>8}{bench.share:>8.0%}{what:>10}{placed:>8.0%}"
        f"{wall[49]:>9.2f}{wall[98]:>9.2f}{cpu[49]:>9.2f}{cpu[98]:>9.2f}{resident_mib():>6}"
    )


HEADER = "nodes claims in-use asked placed p50-ms p99-ms cpu-p50 cpu-p99 MiB"


@click.command()
@click.option("--nodes", "sizes_", multiple=True, type=int, help="Nodes of eight GPUs; repeatable.")
@click.option("--share", default=0.7, show_default=True, help="Memory slices in use.")
@click.option("--decisions", default=5000, show_default=True, help="A tenth of the rarer claims.")
@click.option("--product", default="A100-SXM4-80GB", show_default=True)
@click.option("--profile", default="", help="Claims are for this one alone, not for a mix.")
def main(
    *, sizes_: tuple[int, ...], share: float, decisions: int, product: str, profile: str
) -> None:
    """Time decisions in clusters of several sizes."""
    shape = geometry(product)
    mix = dict(zip(sizes(shape), MIXES["uniform"], strict=True))
    click.echo("{:>7}{:>8}{:>8}{:>10}{:>8}{:>9}{:>9}{:>9}{:>9}{:>6}".format(*HEADER.split()))
    for nodes in sizes_ or (10, 100, 1000):
        bench = Bench(shape, {profile: 1.0} if profile else mix, nodes=nodes, seed=nodes)
        while bench.share < share:
            for _ in range(max(1, nodes // 10)):
                bench.place()
        gc.collect()
        gc.freeze()  # as the controller does once it has mirrored the cluster
        for what, spec in asked([*mix]).items():
            times = []
            for _ in range(decisions if spec is None else max(2, decisions // 10)):
                times.append(bench.place(spec))
                while bench.share > share:
                    bench.release()
            click.echo(_row(bench, what, times))


if __name__ == "__main__":
    main()
