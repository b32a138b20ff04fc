"""Memory slices of the random world: each is held once, or by shares that fit, within quotas."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from dra.claims.claims import allocation_managers
from dra.common.quantity import parse_quantity
from dra.common.resources import DEVICE_CLASSES, Obj, at
from dra.gpu.names import MigDevice
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import copied
from tests.controller.world.worldnodes import SHARING
from tests.controller.world.worldobjects import consumed, held


def check_held_once(claims: Iterable[tuple[str, Obj]]) -> None:
    """No two claims, by name, hold the same memory slice, but by shares that fit together."""
    taken: dict[tuple[str, int, int], tuple[str, MigDevice]] = {}
    given: dict[tuple[str, MigDevice], list[int]] = {}
    for name, obj in claims:
        for where, device, profile in held(obj):
            for piece in range(device.start, device.start + profile.memory_slices):
                place = (where, device.minor, piece)
                other, theirs = taken.setdefault(place, (name, device))
                is_own = (other, theirs) == (name, device)
                shared = device.shared and theirs == device and other != name
                assert is_own or shared, f"{name} and {other} both have {place}"
            if device.shared:
                shares = given.setdefault((where, device), [])
                shares.append(consumed(obj, device))
                assert len(shares) <= SHARING, f"{device} has {len(shares)} claims"
                assert sum(shares) <= profile.memory_mib, f"{device} is given {sum(shares)} MiB"


def check_writers(claims: Iterable[tuple[str, Obj]], schedulers: Collection[str]) -> None:
    """kube-scheduler alone writes allocations of its nodes, and none of others."""
    for name, obj in claims:
        for where, _, _ in held(obj):
            (manager,) = allocation_managers(obj["metadata"])
            assert (manager == "kube-scheduler") == (where in schedulers), f"{name} on {where}"


def set_quotas(bench: Bench, quotas: Mapping[str, Mapping[str, int]]) -> None:
    """Have the generated classes say what the namespace may hold: devices, and GiB of memory."""
    for name, limits in quotas.items():
        body = copied(bench.api.get(DEVICE_CLASSES, name))
        suffix = {"devices": "", "memory": "Gi"}
        body["metadata"]["annotations"] |= {
            f"mig.dra.dev/{what}-per-namespace": f"{limit}{suffix[what]}"
            for what, limit in limits.items()
        }
        bench.cluster.set_class(bench.api.put(DEVICE_CLASSES, body))


def check_quotas(
    claims: Iterable[tuple[str, Obj]], quotas: Mapping[str, Mapping[str, int]]
) -> Counter[tuple[str, str]]:
    """No class has given out more than its quota; returns what each has, by what is stored."""
    found: Counter[tuple[str, str]] = Counter()
    for _, obj in claims:
        names = {}
        for each in obj["spec"]["devices"]["requests"]:
            names[each["name"]] = each.get("exactly", {}).get("deviceClassName")
            for choice in each.get("firstAvailable", ()):
                names[f"{each['name']}/{choice['name']}"] = choice["deviceClassName"]
        allocation = (obj.get("status") or {}).get("allocation") or {"devices": {"results": []}}
        for result in allocation["devices"]["results"]:
            name = names[result["request"]]
            if name in quotas:
                consumed = at(result, "consumedCapacity", "memory", default="0")
                size = re.search(r"g(\d+)gb", result["device"])
                assert size is not None
                memory = int(parse_quantity(consumed) // 2**20) or 1024 * int(size[1])
                found[name, "devices"] += 1
                found[name, "memory"] += memory
    for name, limits in quotas.items():
        for what, limit in limits.items():
            most = limit * (1024 if what == "memory" else 1)
            assert found[name, what] <= most, (name, what, found)
    return found
