"""The query that joins dcgm-exporter's series with ours, as Prometheus evaluates it.

Labels: ``internal/pkg/rendermetrics`` and ``internal/pkg/transformation/kubernetes.go`` of
dcgm-exporter 4.8.2. With its DRA labels a series of a slice appears for each pod on the GPU.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.docs.handbook.blocks import ROOT, blocks

PROMTOOL = shutil.which("promtool")
PAGE = ROOT / "docs/observability.md"
BEFORE = (
    'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{gpu="0",UUID="{gpu}",pci_bus_id="0000:07:00.0",device="nvidia0",'
    'modelName="NVIDIA A100-SXM4-40GB"{instance},Hostname="n"}}'
)
"""Without pods; the label of the host's name is ``hostname`` from 4.8.3 on."""
WITH_PODS = (
    'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{gpu="0",UUID="{gpu}",pci_bus_id="0000:07:00.0",device="nvidia0",'
    'modelName="NVIDIA A100-SXM4-40GB"{instance},hostname="n",container="main",'
    'dra_claim_name="{pod}-gpu",dra_claim_namespace="default",dra_device_name="gpu-0-mig-x",'
    'dra_driver_name="gpu.nvidia.com",dra_mig_device_uuid="",dra_mig_profile="1g.5gb",'
    'dra_pool_name="n",namespace="default",pod="{pod}"}}'
)


def info(pod: str, gpu: str, gi: str = "") -> str:
    """A series of ours; Prometheus takes an empty label for none."""
    of_slice = f',mig_uuid="MIG-{pod}",gi="{gi}",ci="0"' if gi else ""
    return (
        f'mig_dra_claim_info{{namespace="default",pod="{pod}",claim="{pod}-gpu",gpu_uuid="{gpu}",'
        f'profile="{"1g.5gb" if gi else "gpu"}",instance="plugin:8080"{of_slice}}}'
    )


def instance(gi: str) -> str:
    return f',GPU_I_PROFILE="1g.5gb",GPU_I_ID="{gi}"' if gi else ""


HELD = [info("a", "GPU-0", "7"), info("b", "GPU-0", "8"), info("c", "GPU-1"), info("d", "GPU-1")]
"""Two slices of a GPU, and a GPU that two claims share."""
MEASURED = {("GPU-0", "7"): 0.25, ("GPU-0", "8"): 0.5, ("GPU-1", ""): 0.75}
PODS = {"GPU-0": ("a", "b"), "GPU-1": ("c", "d")}


def dcgm(*, with_pods: bool) -> dict[str, float]:
    """Series as dcgm-exporter writes them, in one of its formats."""
    found: dict[str, float] = {}
    for (gpu, gi), value in MEASURED.items():
        pods = PODS[gpu] if with_pods else ("",)
        shape = WITH_PODS if with_pods else BEFORE
        found |= {shape.format(gpu=gpu, instance=instance(gi), pod=p): value for p in pods}
    return found


def expected() -> list[dict[str, object]]:
    values = {"a": 0.25, "b": 0.5, "c": 0.75, "d": 0.75}
    held = dict(zip("abcd", HELD, strict=True))
    joined = {
        "a": ',UUID="GPU-0",GPU_I_ID="7"',
        "b": ',UUID="GPU-0",GPU_I_ID="8"',
        "c": ',UUID="GPU-1"',
        "d": ',UUID="GPU-1"',
    }
    return [
        {
            "labels": held[pod].removeprefix("mig_dra_claim_info").replace("}", f"{joined[pod]}}}"),
            "value": value,
        }
        for pod, value in values.items()
    ]


def query() -> str:
    (block,) = (b for b in blocks(PAGE) if b.kind == "tested")
    assert block.language == "promql"
    return block.text


@pytest.mark.skipif(PROMTOOL is None, reason="promtool, of Debian's prometheus, is not installed")
def test_the_query_names_the_pods_of_both_formats(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    tests = [
        {
            "name": "with DRA labels" if with_pods else "without pods",
            "interval": "1m",
            "input_series": [
                *({"series": each, "values": "1x5"} for each in HELD),
                *({"series": s, "values": f"{v}x5"} for s, v in dcgm(with_pods=with_pods).items()),
            ],
            "promql_expr_test": [{"expr": query(), "eval_time": "3m", "exp_samples": expected()}],
        }
        for with_pods in (False, True)
    ]
    cases = tmp_path / "cases.yaml"
    cases.write_text(yaml.safe_dump({"rule_files": [], "tests": tests}))
    done = subprocess.run(
        [PROMTOOL, "test", "rules", str(cases)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
