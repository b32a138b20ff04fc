"""Container runtimes that would start containers without their device are refused."""

from __future__ import annotations

import pytest

from dra.common.runtimes import doubt, refusal

NEEDS = {"0.5.0": (), "0.7.0": ("containerd://1.7.2", "containerd://1.7.15", "cri-o://1.29.13")}
"""By CDI version of the specs, the runtimes that read others, and not these."""

NEVER = {
    "docker://28.3.1": "let kubelet use containerd or CRI-O",
    "containerd://1.6.36": "reads no CDI; upgrade containerd to 1.7.",
    "containerd://1.7.1": "reads no CDI; upgrade containerd to 1.7.",
    "cri-o://1.27.8": "reads no CDI; upgrade cri-o to 1.",
}
READ = (
    *("containerd://1.7.16", "containerd://1.7.27-k3s1", "containerd://v2.0.0", "cri-o://1.30.0"),
    *("containerd://2.1.4+unknown", "containerd://2.3", "cri-o://1.36.0-dev", "cri-o://2.0.0"),
)
UNKNOWN = ("", "simulated://1", "remote", "runtime://1.0", "containerd://main", "cri-o", "://")


@pytest.mark.parametrize("needs", NEEDS)
def test_a_runtime_is_refused_by_what_its_version_reads(needs: str) -> None:
    for runtime, remedy in NEVER.items():
        assert remedy in refusal(runtime, needs=needs)
    for runtime in NEEDS["0.7.0"]:
        assert bool(refusal(runtime, needs=needs)) is (runtime in NEEDS[needs])
    for runtime in (*READ, *UNKNOWN):
        assert refusal(runtime, needs=needs) == ""


def test_what_is_to_be_configured_is_said_of_containerd_before_2() -> None:
    assert "enable_cdi = true" in doubt("containerd://1.7.27")
    for runtime in ("containerd://2.0.0", "cri-o://1.31.0", "docker://28.0.0", *UNKNOWN):
        assert doubt(runtime) == ""
