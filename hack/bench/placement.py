"""Figures of ways to place slices: ``python -m hack.bench.placement``.

Each sequence of requests (``hack/bench/traffic.py``) is placed by every way there is
(``hack/bench/peers.py``). A row is one figure of one scene, as a mean over seeds. ``possible`` is
what no policy can exceed (``hack/bench/bound.py``), ``early`` what none can that accepts the most
of the first requests, and ``moving`` at least what one gets that takes whoever fits and moves all
others at will. The last column is the default policy less the best of the others, on the same
sequences, with the standard error of the mean difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev

import click

from hack.bench.bound import bounds
from hack.bench.fleet import Fleet
from hack.bench.peers import PEERS
from hack.bench.play import Figures, play
from hack.bench.traffic import scenes

DEFAULT = "sws"
_BOUNDS = ("possible", "moving", "early")
_LESS_IS_BETTER = ("wait", "worst p95", "moves")


def run(name: str, seed: int, way: str, *, trace: Path | None) -> Figures:
    """Figures of one scene, placed in one way; or its bounds."""
    scene = scenes(trace)[name](seed)
    if way == "bounds":
        return bounds(scene)
    fleet = Fleet(scene.nodes)
    played = play(scene.asks, fleet, PEERS[way](fleet), queues=scene.queues, since=scene.since)
    return played.wait if scene.queues else played.accepted


def rows(name: str, found: Mapping[str, Sequence[Figures]]) -> Iterable[str]:
    """The lines of a scene: a figure in each."""
    for figure in found[DEFAULT][0]:
        sign = -1 if figure in _LESS_IS_BETTER else 1
        values = {
            way: [f[figure] for f in each] for way, each in found.items() if figure in each[0]
        }
        limits = {f"{kind} {figure}": found["bounds"][0] for kind in _BOUNDS}
        shown = [
            fmean(f[key] for f in found["bounds"]) if key in first else None
            for key, first in limits.items()
        ]
        others = [way for way in values if way not in (DEFAULT, "spread")]
        best = max(others, key=lambda way: sign * fmean(values[way]))
        apart = [a - b for a, b in zip(values[DEFAULT], values[best], strict=True)]
        error = stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else 0.0
        cells = [*shown, *(fmean(values[way]) for way in PEERS)]
        line = "".join(f"{'-' if c is None else format(c, '.2f'):>10}" for c in cells)
        yield f"{name[:30]:30} {figure:9}{line}  {fmean(apart):+.2f} ± {error:.2f} {best}"


@click.command()
@click.option("--seeds", default=20, show_default=True, help="Sequences of each scene.")
@click.option("--first", default=1, show_default=True, help="The first seed.")
@click.option("--only", default="", help="Scenes whose name matches this regular expression.")
@click.option("--trace", type=click.Path(path_type=Path), help="openb_pod_list_default.csv.")
@click.option("--workers", default=2, show_default=True, help="Processes.")
def main(*, seeds: int, first: int, only: str, trace: Path | None, workers: int) -> None:
    """Compare the ways to place slices."""
    ways = ["bounds", *PEERS]
    names = [name for name in scenes(trace) if re.search(only, name)]
    titles = "".join(f"{way:>10}" for way in (*_BOUNDS, *PEERS))
    click.echo(f"{f'{seeds} seeds from {first}':40}{titles}  {DEFAULT} less the best other")
    jobs = [(n, s, w) for n in names for w in ways for s in range(first, first + seeds)]
    with ProcessPoolExecutor(workers) as pool:
        figures = pool.map(partial(run, trace=trace), *zip(*jobs, strict=True))
        done = zip(jobs, figures, strict=True)
        for name, of_scene in groupby(done, key=lambda entry: entry[0][0]):
            found: dict[str, list[Figures]] = {}
            for (_, _, way), figure in of_scene:
                found.setdefault(way, []).append(figure)
            for line in rows(name, found):
                click.echo(line)


if __name__ == "__main__":
    main()
