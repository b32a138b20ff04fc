"""Choice of how many claims may have a GPU of this node, by its class or by an option."""

from __future__ import annotations

from collections.abc import Callable

from dra.gpu.layouts.choosing import Choice
from dra.gpu.shares import HAMI_CORE, UNENFORCED, ShareOffer


class ShareChoice:
    """The choice of now; ``shares`` is that of nodes without a class. For one thread.

    While it is not known, what was chosen before stays.
    """

    def __init__(self, shares: int, choice: Callable[[], Choice | None]) -> None:
        self._choice = choice
        self._default = offer(shares)
        self._last = self._default

    def current(self) -> ShareOffer | None:
        """Offer of GPUs outside MIG mode to several claims; None where one has one alone."""
        choice = self._choice()
        if choice is None:
            self._last = self._default
        elif not choice.problem:
            self._last = offer(choice.shares, choice.hami_core) or self._default
        return self._last


def offer(shares: int, hami_core: str = "") -> ShareOffer | None:
    """The offer of a GPU to ``shares`` claims, with the directory of HAMi-core if there is one."""
    if shares < 2:  # noqa: PLR2004 - one claim has it alone
        return None
    return ShareOffer(shares, HAMI_CORE if hami_core else UNENFORCED, hami_core)
