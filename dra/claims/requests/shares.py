"""Share of a GPU that a request asks for, by its capacities or by configuration."""

from __future__ import annotations

from dataclasses import replace

from dra.claims.claims import Request
from dra.common.quantity import QuantityError, parse_quantity
from dra.gpu.shares import Ask

_MIB = 2**20


def ask_of(request: Request, configured: Ask, driver: str) -> Ask:
    """Limits that ``request`` states: a capacity goes before what is ``configured``.

    Amounts are rounded up to whole MiB and whole hundredths of the cores, as kube-scheduler rounds
    them by the request policy of such devices.
    """
    memory, cores = _amount(request, "memory", driver), _amount(request, "cores", driver)
    if memory is None and cores is None:
        return configured
    return replace(
        configured,
        memory_mib=configured.memory_mib if memory is None else -(-memory // _MIB),
        cores=configured.cores if cores is None else cores,
    )


def _amount(request: Request, capacity: str, driver: str) -> int | None:
    """A capacity that is asked for, rounded up; None where it is not, or is no quantity."""
    for name, quantity in request.capacity:
        if name in (capacity, f"{driver}/{capacity}"):
            try:
                return -int(-parse_quantity(quantity) // 1)
            except QuantityError:
                return None
    return None
