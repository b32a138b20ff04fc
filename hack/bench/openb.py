"""The pod list of Alibaba's ``cluster-trace-gpu-v2023`` (openb), with slices for parts of GPUs.

The data is not here: ``openb_pod_list_default.csv`` of github.com/alibaba/clusterdata. Its pods had
fractions of whole GPUs, of several models, not MIG. A fraction becomes the smallest profile that
has at least as large a part of the GPU's memory slices and of its compute slices; whole GPUs become
slices of the largest profile, on one node. Pods without GPUs are left out.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from dra.gpu.geometry import Geometry

_MILLI = 1000


@dataclass(frozen=True, slots=True)
class Job:
    """Slices of one pod; times in seconds. ``whole`` is the profile of a whole GPU."""

    created: float
    lasts: float
    profile: str
    count: int
    whole: str
    asked: float
    """GPUs that the pod asked for."""


def read(path: Path, shape: Geometry) -> list[Job]:
    """The pods with GPUs, as they were created."""
    ordered = sorted(shape.profiles, key=lambda p: (p.memory_slices, p.compute_slices))
    whole = ordered[-1].name
    jobs = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            count, milli = int(row["num_gpu"]), int(row["gpu_milli"] or 0)
            if not count:
                continue
            profile = next(
                p.name
                for p in ordered
                if p.memory_slices * _MILLI >= milli * shape.memory_slices
                and p.compute_slices * _MILLI >= milli * shape.compute_slices
            )
            created, deleted = float(row["creation_time"]), float(row["deletion_time"])
            begun = float(row["scheduled_time"] or created)
            asked = count * milli / _MILLI
            jobs.append(Job(created, max(1.0, deleted - begun), profile, count, whole, asked))
    return sorted(jobs, key=lambda job: job.created)


def moved(jobs: Iterable[Job], times: Iterable[float]) -> list[Job]:
    """The same pods, created at these times."""
    again = (replace(job, created=time) for job, time in zip(jobs, times, strict=True))
    return sorted(again, key=lambda job: job.created)


def peak(jobs: Iterable[Job], shape: Geometry) -> float:
    """The most GPUs' worth of slices that would be in use at a time, if nobody waited."""
    size = {p.name: p.memory_slices / shape.memory_slices for p in shape.profiles}
    changes = [
        change
        for job in jobs
        for change in (
            (job.created, job.count * size[job.profile]),
            (job.created + job.lasts, -job.count * size[job.profile]),
        )
    ]
    most = now = 0.0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most
