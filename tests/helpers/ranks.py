"""Ranks that count how often they are compared: what an order costs, on any machine."""

from __future__ import annotations


class Rank:
    """A rank like its number; ``compared`` counts the comparisons of all."""

    compared = 0

    def __init__(self, value: int) -> None:
        self.value = value

    def __lt__(self, other: Rank) -> bool:
        Rank.compared += 1
        return self.value < other.value

    def __eq__(self, other: object) -> bool:
        Rank.compared += 1
        return isinstance(other, Rank) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)
