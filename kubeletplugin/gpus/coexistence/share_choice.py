"""Choice of how many claims may have a GPU or slice of this node, by its class or by options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dra.gpu.layouts import Choice
from dra.gpu.shares import HAMI_CORE, UNENFORCED, ShareOffer


@dataclass(frozen=True, slots=True)
class ShareOffers:
    """Offers of GPUs outside MIG mode, and of slices of the others; None: to one claim each."""

    whole: ShareOffer | None = None
    slices: ShareOffer | None = None


class ShareChoice:
    """The choice of now; ``shares`` and ``slice_shares`` are those of nodes without a class.

    For one thread. While it is not known, what was chosen before stays.
    """

    def __init__(
        self, shares: int, slice_shares: int, *, choice: Callable[[], Choice | None]
    ) -> None:
        self._choice = choice
        self._default = ShareOffers(offer(shares), offer(slice_shares))
        self._last = self._default

    def current(self) -> ShareOffers:
        """Offers of GPUs and slices to several claims."""
        choice = self._choice()
        if choice is None:
            self._last = self._default
        elif not choice.problem:
            self._last = ShareOffers(
                offer(choice.shares, choice.hami_core) or self._default.whole,
                offer(choice.slice_shares) or self._default.slices,
            )
        return self._last


def offer(shares: int, hami_core: str = "") -> ShareOffer | None:
    """The offer to ``shares`` claims, with the directory of HAMi-core if there is one."""
    if shares < 2:  # noqa: PLR2004 - one claim has it alone
        return None
    return ShareOffer(shares, HAMI_CORE if hami_core else UNENFORCED, hami_core)
