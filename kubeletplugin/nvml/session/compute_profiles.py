"""Compute-instance profiles as NVML has told them, so that not every slice is asked for again.

A GPU has a dozen of them, each asked for by two calls where the driver refuses one.
"""

from __future__ import annotations

from dataclasses import dataclass

ProfileKey = tuple[int, str, int]
"""Generation of the session, UUID of the GPU, id of the GPU-instance profile."""


@dataclass(frozen=True, slots=True)
class ComputeProfile:
    """The used part of nvmlComputeInstanceProfileInfo_t, and the enum under which it was told."""

    enum: int
    id: int
    slices: int
    multiprocessors: int


class ComputeProfiles:
    """Answers, of which those count that were given twice alike. Thread-safe.

    What is kept is only ever replaced, so that reading takes no lock.
    """

    def __init__(self) -> None:
        self._last: dict[ProfileKey, tuple[ComputeProfile, ...]] = {}
        self._certain: dict[ProfileKey, tuple[ComputeProfile, ...]] = {}

    def certain(self, key: ProfileKey) -> tuple[ComputeProfile, ...]:
        """The profiles in a GPU instance of that profile; empty until they are certain."""
        return self._certain.get(key, ())

    def take(self, key: ProfileKey, answer: tuple[ComputeProfile, ...]) -> None:
        """Take note of an answer."""
        if answer and self._last.get(key) == answer:
            self._certain[key] = answer
        self._last[key] = answer

    def doubt(self, key: ProfileKey) -> None:
        """Ask again: an instance of one of them was refused."""
        self._certain.pop(key, None)
        self._last.pop(key, None)
