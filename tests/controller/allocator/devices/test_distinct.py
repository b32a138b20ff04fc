"""``distinctAttribute``: devices that differ are found exactly when they exist."""

from __future__ import annotations

from tests.controller.helpers.deciding import decide, why
from tests.controller.helpers.objects import (
    claim,
    filled,
    gpu,
    request,
    with_gpus,
)

APART = {"distinctAttribute": "mig.dra.dev/parentUUID"}


def test_slices_on_different_gpus_are_found_when_asked_for() -> None:
    asked = claim("c", request("r", count=2), constraints=[APART])
    decision = decide(with_gpus(gpu(0), filled(1, 0, 1, 2)), asked)
    assert decision is not None
    assert {p.gpu for p in decision.picks} == {"gpu-0", "gpu-1"}
    found = why(with_gpus(gpu(0)), asked)
    assert "with different mig.dra.dev/parentUUID" in found.message


def test_a_device_without_the_attribute_satisfies_no_constraint() -> None:
    for kind in ("matchAttribute", "distinctAttribute"):
        asked = claim("c", request("r"), constraints=[{kind: "mig.dra.dev/colour"}])
        assert decide(with_gpus(gpu(0)), asked) is None
