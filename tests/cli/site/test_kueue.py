"""``kubectl mig kueue``: Kueue takes what is printed, and it covers every class."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
import yaml

from cli.commands.kueue import MOST_CLASSES, MOST_RESOURCES, count_devices, count_memory
from cli.output import CliError, Exit
from dra.claims.classes import DeviceClass, generated_classes, read_class
from dra.gpu.inventory import AllocatorKind
from sim.nvml.products import load_product
from tests.cli.conftest import Mig
from tests.cli.world import World
from tests.controller.helpers.objects import DRIVER

LABEL_KEY = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def classes(*products: str) -> list[DeviceClass]:
    """The classes that are generated for a cluster of these products."""
    profiles = {p.name for product in products for p in load_product(product).gi_profiles}
    return [read_class(obj, DRIVER) for obj in generated_classes(DRIVER, profiles)]


def check(made: dict[str, Any], expected: list[DeviceClass]) -> None:
    """The rules of Kueue's ``validateDeviceClassMappings``, and each class once."""
    mappings = made["resources"]["deviceClassMappings"]
    assert 0 < len(mappings) <= MOST_RESOURCES
    names = Counter(mapping["name"] for mapping in mappings)
    found = Counter(name for mapping in mappings for name in mapping["deviceClassNames"])
    assert {*names.values(), *found.values()} == {1}
    assert all(LABEL_KEY.fullmatch(name) for name in (*names, *found))
    assert all(0 < len(m["deviceClassNames"]) <= MOST_CLASSES for m in mappings)
    assert set(found) == {each.name for each in expected}


def counted(made: dict[str, Any]) -> dict[str, list[str]]:
    """The classes that each resource counts."""
    return {m["name"]: m["deviceClassNames"] for m in made["resources"]["deviceClassMappings"]}


@pytest.mark.parametrize(
    "products",
    [
        ("A100-SXM4-40GB",),
        ("A30",),
        ("A100-SXM4-40GB", "H100-80GB-HBM3"),
        ("A30", "A100-SXM4-80GB", "H200"),
    ],
)
def test_kueue_takes_the_mapping_of_all_generated_classes(products: tuple[str, ...]) -> None:
    found = classes(*products)
    check(count_devices(found, DRIVER), found)


def test_a_slice_counts_the_same_by_claim_and_by_limit() -> None:
    found = counted(count_devices(classes("A100-SXM4-40GB"), DRIVER))
    assert found["nvidia.com/mig-1g.5gb"] == ["mig-1g.5gb"]
    assert found["nvidia.com/mig-1g.5gb.me"] == ["mig-1g.5gb.me"]
    assert found["mig-min-10gb"] == ["mig-min-10gb"]


def test_more_than_kueue_takes_is_put_together_by_size() -> None:
    found = classes("A100-SXM4-40GB", "H100-80GB-HBM3")
    together = counted(count_devices(found, DRIVER))
    assert {"mig-2g.10gb", "mig-2g.20gb"} <= {*together[f"{DRIVER}/mig-2g"]}


def test_what_kueue_cannot_take_is_refused_with_the_remedy() -> None:
    many = [DeviceClass(f"team-{n}", True, (), (), "") for n in range(MOST_RESOURCES + 1)]
    with pytest.raises(CliError, match=r"17 classes make 17 .* takes 16: name those"):
        count_devices(many, DRIVER)
    with pytest.raises(CliError, match=r"17 classes count as mig.dra.dev/memory"):
        count_memory(many, DRIVER)


def test_the_classes_of_the_cluster_are_printed_as_yaml(world: World, mig: Mig) -> None:
    world.add_classes("1g.5gb", "7g.40gb")
    world.add_node("node-a")
    ran = mig("kueue")
    made = yaml.safe_load(ran.out)
    assert ran.code == Exit.OK
    assert (made["apiVersion"], made["kind"]) == ("config.kueue.x-k8s.io/v1beta2", "Configuration")
    check(made, [read_class(o, DRIVER) for o in generated_classes(DRIVER, ["1g.5gb", "7g.40gb"])])
    assert "in no ResourceSlice" in ran.out


def test_memory_is_counted_where_kube_scheduler_allocates(world: World, mig: Mig) -> None:
    world.add_classes("1g.5gb")
    world.add_node("node-a")
    refused = mig("kueue", "mig.dra.dev", "--by", "memory")
    assert (refused.code, "--allocator=scheduler" in refused.err) == (Exit.FINDING, True)
    world.add_node("node-b", allocator=AllocatorKind.SCHEDULER)
    made = yaml.safe_load(mig("kueue", "mig.dra.dev", "--by", "memory").out)
    (mapping,) = made["resources"]["deviceClassMappings"]
    assert (mapping["name"], mapping["deviceClassNames"]) == (f"{DRIVER}/memory", ["mig.dra.dev"])
    (source,) = mapping["sources"]
    assert (source["counter"]["name"], source["counter"]["driver"]) == ("memory", DRIVER)


def test_a_class_that_is_not_there_is_named(world: World, mig: Mig) -> None:
    assert mig("kueue").code == Exit.NOT_FOUND
    world.add_classes("1g.5gb")
    ran = mig("kueue", "mig-9g.1gb")
    assert (ran.code, "no DeviceClass 'mig-9g.1gb'" in ran.err) == (Exit.NOT_FOUND, True)
