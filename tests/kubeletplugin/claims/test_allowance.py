"""The bound on slices that are made ahead for nothing."""

from __future__ import annotations

from kubeletplugin.claims.early import MOST_OF_GPU, MOST_OF_NAMESPACE, Allowance
from kubeletplugin.times import FORGIVEN_SECONDS
from tests.dra.kube.clocks import FakeClock


def waste(allowance: Allowance, namespace: str, gpu: str, times: int) -> None:
    for _ in range(times):
        allowance.waste(namespace, [gpu])


def test_a_namespace_has_its_own() -> None:
    allowance = Allowance(FakeClock())
    waste(allowance, "a", "gpu-0", MOST_OF_NAMESPACE - 1)
    assert allowance.is_left("a", ["gpu-1"])
    waste(allowance, "a", "gpu-0", 1)
    assert not allowance.is_left("a", ["gpu-1"])
    assert allowance.is_left("b", ["gpu-0", "gpu-1"])


def test_many_namespaces_together_have_no_more_than_a_gpu_has() -> None:
    allowance = Allowance(FakeClock())
    for number in range(MOST_OF_GPU):
        waste(allowance, f"namespace-{number}", "gpu-0", 1)
    assert not allowance.is_left("another", ["gpu-1", "gpu-0"])
    assert allowance.is_left("another", ["gpu-1"])


def test_one_after_another_is_forgiven() -> None:
    clock = FakeClock()
    allowance = Allowance(clock)
    waste(allowance, "a", "gpu-0", MOST_OF_NAMESPACE)
    clock.sleep(FORGIVEN_SECONDS - 1)
    assert not allowance.is_left("a", ["gpu-0"])
    clock.sleep(1)
    assert allowance.is_left("a", ["gpu-0"])
    waste(allowance, "a", "gpu-0", 1)
    assert not allowance.is_left("a", ["gpu-0"])


def test_what_is_forgiven_is_kept_no_more() -> None:
    clock = FakeClock()
    allowance = Allowance(clock)
    for number in range(1000):
        waste(allowance, f"namespace-{number}", "gpu-0", 1)
        clock.sleep(FORGIVEN_SECONDS)
    allowance.waste("a", ["gpu-0"])
    assert len(allowance._wasted) < 10
