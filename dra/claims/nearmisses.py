"""Amounts of memory in selectors that miss a profile by a little, so that a larger one is taken.

Profiles have somewhat less memory than their names say: ``3g.20gb`` has 19,968 MiB, not 20 GiB.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from dra.claims.wants import Want
from dra.common.quantity import QuantityError, parse_quantity
from dra.gpu.geometry import Geometry, Profile
from dra.gpu.names import nominal_gigabytes
from dra.gpu.shares import NO_ASK

_AMOUNT = re.compile(r"quantity\(\s*['\"]([^'\"]{1,32})['\"]\s*\)")
_MEBI = 1 << 20
_BY = 1.1
"""Share of its memory by which a profile may be missed."""


def find_near_miss(wants: Iterable[Want], geometries: Iterable[Geometry]) -> str:
    """Words on an amount in selectors of ``wants`` that misses a profile by less than a tenth.

    Empty without one. The amounts alone are read, not what the selectors do with them. The memory
    of a share is selected by what is to be left for it, and misses no profile.
    """
    amounts = {*_amounts(e for want in wants if want.ask == NO_ASK for e in want.expressions)}
    for geometry in geometries if amounts else ():
        profiles = [p for p in geometry.profiles if p.placements]
        for text, mib in sorted(amounts):
            below = [p for p in profiles if p.memory_mib < mib <= p.memory_mib * _BY]
            above = [p for p in profiles if p.memory_mib >= mib]
            missed = max(below, key=lambda p: (p.memory_mib, -p.compute_slices), default=None)
            taken = min(above, key=lambda p: (p.memory_mib, p.compute_slices), default=None)
            if missed is not None:
                return _words(text, missed, taken)
    return ""


def _amounts(expressions: Iterable[str]) -> Iterator[tuple[str, float]]:
    for expression in expressions:
        for text in _AMOUNT.findall(expression) if "memory" in expression else ():
            try:
                yield text, float(parse_quantity(text) / _MEBI)
            except QuantityError:
                continue


def _words(text: str, missed: Profile, taken: Profile | None) -> str:
    """Words on an amount ``text`` that misses a profile; ``taken``: the next that has as much."""
    size = nominal_gigabytes(missed.name)
    then = f"the next is {taken.name}" if taken else "no other has as much"
    return (
        f"a selector asks for {text} of memory, which {missed.name} with {missed.memory_mib}Mi "
        f"misses by little: {then}. If {missed.name} will do, ask by class mig-min-{size}gb, or "
        f"for quantity('{missed.memory_mib}Mi')"
    )
