"""Prepare of slices that are there: made before kubelet asked, or kept of a former claim."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from dra.kube.client import KubeApi
from hack.bench.node.figures import Row, percentile
from hack.bench.node.measures import settle, smallest_slices
from hack.bench.node.node import Claims, Kubelet, Place, Plugin
from sim.nvml.machine import Machine

CREATE_MS = 500
LEADS = (0.05, 1.0)
"""Seconds from the allocation to kubelet's call: about the first where nothing holds the pod up,
more where volumes are to be mounted first, or kube-scheduler or kubelet is busy."""
_SHARE = 0.95
_MOST = 20.0


def rows(place: Place, machine: Machine, api: KubeApi, *, count: int) -> list[Row]:
    """Milliseconds that 95 % of the calls take at most, where a creation takes 500."""
    place = replace(place, create_ms=CREATE_MS)
    devices = smallest_slices(machine)[:count]
    found = [
        Row(
            f"ahead-{lead:g}",
            f"Prepare p95, creation {CREATE_MS} ms, {lead:g} s after the allocation",
            percentile(_after(place, api, devices, lead), _SHARE),
            "ms",
            most=_MOST if lead * 1e3 > CREATE_MS else None,
        )
        for lead in LEADS
    ]
    kept = percentile(_kept(place, api, devices), _SHARE)
    what = f"Prepare p95, creation {CREATE_MS} ms, GPU instance kept of a former claim"
    return [*found, Row("kept", what, kept, "ms", most=_MOST)]


def _after(place: Place, api: KubeApi, devices: Sequence[str], lead: float) -> list[float]:
    plugin, claims = Plugin(place), Claims(api)
    with plugin.running(api):
        kubelet = Kubelet(place.socket)
        taken = []
        for device in devices:
            refs = claims.make([device], expected=True)
            time.sleep(lead)
            taken.append(kubelet.prepare(refs[0]))
            kubelet.unprepare(refs[0])
            settle(claims, refs)
            claims.delete(refs)
        kubelet.close()
    return taken


def _kept(place: Place, api: KubeApi, devices: Sequence[str]) -> list[float]:
    plugin, claims = Plugin(place, "--idle-seconds", "600"), Claims(api)
    with plugin.running(api):
        kubelet = Kubelet(place.socket)
        taken = []
        for device in devices:
            first, second = claims.make([device, device])
            kubelet.prepare(first)
            kubelet.unprepare(first)
            taken.append(kubelet.prepare(second))
            kubelet.unprepare(second)
            settle(claims, [second])
            claims.delete([first, second])
        kubelet.close()
    return taken
