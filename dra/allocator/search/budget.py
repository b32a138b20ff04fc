"""The budget of a decision, in steps of some microseconds: no clock decides what is found."""

from __future__ import annotations

NODE_STEPS = 10_000
"""Upper bound for the devices of one node; what people ask for takes tens of steps."""

ENOUGH_STEPS = 300_000
"""After these the best node found so far is taken, although others may be better."""

DECISION_STEPS = 3_000_000
"""After these no further node is searched: some seconds of work, done in parts."""


class TooHardError(Exception):
    """A node's steps are used up; whether there is a solution is not known."""


class Budget:
    """The steps that one decision has taken; ``too_hard`` counts the nodes that were given up."""

    def __init__(self) -> None:
        self.used = 0
        self.too_hard = 0
        self._begun = 0
        self._node_end = NODE_STEPS

    @property
    def is_enough(self) -> bool:
        """True if the best node found so far is good enough."""
        return self.used - self._begun >= ENOUGH_STEPS

    @property
    def is_used_up(self) -> bool:
        """True if no further node is to be searched."""
        return self.used - self._begun >= DECISION_STEPS

    def open_decision(self) -> None:
        """Begin with a decision that has as many steps as the one before."""
        self._begun, self.too_hard = self.used, 0

    def open_node(self) -> None:
        """Begin with the devices of a node."""
        self._node_end = self.used + NODE_STEPS

    def spend(self, steps: int) -> None:
        """Count steps for the present node.

        Raises:
            TooHardError: it has had all of its own.
        """
        self.used += steps
        if self.used > self._node_end:
            raise TooHardError
