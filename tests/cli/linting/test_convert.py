"""``kubectl mig convert`` prints manifests of other systems as they are written here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from dra.common.resources import Obj
from tests.cli.linting.conftest import Command

EXAMPLES = Path(__file__).parents[3] / "docs/examples"
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: d, namespace: team}
spec:
  template:
    metadata:
      labels: {app: d}
      annotations: {hami.io/gpu-scheduler-policy: spread}
    spec:
      containers:
      - name: main
        image: busybox
        resources:
          limits: {nvidia.com/gpu: 2, nvidia.com/gpumem: 8000, nvidia.com/gpucores: 30}
---
apiVersion: v1
kind: Service
metadata: {name: s}
"""


def pod(limits: str, spec: str = "", metadata: str = "") -> str:
    return f"""
apiVersion: v1
kind: Pod
metadata: {{name: p{metadata}}}
spec:
  {spec or "restartPolicy: Never"}
  containers:
  - name: main
    image: busybox
    resources: {{limits: {{{limits}}}}}
"""


def objects(text: str) -> list[Obj]:
    return [*yaml.safe_load_all(text)]


def test_a_workload_comes_out_with_claims_and_the_templates_that_it_needs(convert: Command) -> None:
    ran = convert(DEPLOYMENT)
    template, deployment, service = objects(ran.out)
    assert ran.code == 0
    assert template["kind"] == "ResourceClaimTemplate"
    assert template["metadata"] == {
        "name": "nvidia.com-gpumem-8000-gpu-spread",
        "namespace": "team",
    }
    made = deployment["spec"]["template"]
    entries = [
        {
            "name": f"gpumem-8000-gpu-spread-{n}",
            "resourceClaimTemplateName": "nvidia.com-gpumem-8000-gpu-spread",
        }
        for n in (0, 1)
    ]
    assert made["spec"]["resourceClaims"] == entries
    (container,) = made["spec"]["containers"]
    assert container["resources"] == {
        "limits": {},
        "claims": [{"name": each["name"]} for each in entries],
    }
    assert made["metadata"]["labels"] == {"app": "d"}
    assert service == {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}


def test_lint_finds_nothing_in_what_it_prints(convert: Command, lint: Command) -> None:
    ran = convert(DEPLOYMENT)
    assert lint(ran.out, "--strict").code == 0


@pytest.mark.parametrize(
    ("text", "template"),
    [
        (pod("nvidia.com/mig-1g.5gb: 1"), "nvidia.com-mig-1g.5gb"),
        (pod("instaslice.redhat.com/mig-1g.5gb+me: 1"), "nvidia.com-mig-1g.5gb.me"),
        (pod("mig.das.com/2g.10gb: 1"), "nvidia.com-mig-2g.10gb"),
        (pod("nvidia.com/gpumem: 3000"), "nvidia.com-gpumem-3000"),
        (
            pod("volcano.sh/vgpu-number: 1, volcano.sh/vgpu-memory: 3k, volcano.sh/vgpu-cores: 50"),
            "nvidia.com-gpumem-3000",
        ),
        (
            pod("volcano.sh/vgpu-memory: 3000, volcano.sh/vgpu-memory-percentage: 30"),
            "nvidia.com-gpumem-percentage-30",
        ),
        (pod("volcano.sh/gpu-memory: 1024"), "nvidia.com-gpumem-1024"),
        (
            pod("nvidia.com/gpu: 1", metadata=", annotations: {nvidia.com/vgpu-mode: mig}"),
            "nvidia.com-gpumem-percentage-100",
        ),
        (
            pod(
                "nvidia.com/gpumem: 3000, nvidia.com/priority: 0",
                metadata=", annotations: {nvidia.com/vgpu-mode: 'hami-core,mig'}",
            ),
            "nvidia.com-gpumem-3000",
        ),
    ],
)
def test_each_system_has_its_words(convert: Command, text: str, template: str) -> None:
    ran = convert(text)
    made, converted = objects(ran.out)
    assert (ran.code, made["metadata"]["name"]) == (0, template)
    (container,) = converted["spec"]["containers"]
    assert container["resources"]["limits"] == {}
    assert len(container["resources"]["claims"]) == 1


def test_what_only_serves_another_system_goes(convert: Command) -> None:
    text = pod(
        "mig.das.com/1g.5gb: 1, instaslice.redhat.com/accelerator-memory-quota: 5",
        "schedulerName: das-scheduler\n  runtimeClassName: nvidia-legacy\n"
        "  schedulingGates: [{name: instaslice.redhat.com/accelerator}, {name: mine}]",
        ", finalizers: [instaslice.redhat.com/accelerator]"
        ", annotations: {volcano.sh/vgpu-mode: mig}",
    )
    of_theirs = "{configMapRef: {name: 5b8e0a9c-0a52-4c07-9f6b-2f4f3b1d9a10}}"
    of_mine = "{configMapRef: {name: mine}}"
    text = text.replace("image: busybox", f"image: busybox\n    envFrom: [{of_theirs}, {of_mine}]")
    ran = convert(text)
    made = objects(ran.out)[1]
    assert made["spec"]["containers"][0]["envFrom"] == [yaml.safe_load(of_mine)]
    assert made["metadata"] == {"name": "p"}
    assert made["spec"].keys() == {"schedulingGates", "containers", "resourceClaims"}
    assert made["spec"]["schedulingGates"] == [{"name": "mine"}]


REFUSED = {
    "nvidia.com/gpu: 1, nvidia.com/gpumem-percentage: 150": "a whole number from 1 to 100",
    "volcano.sh/vgpu-number: 1, volcano.sh/vgpu-memory-percentage: 101": "a whole number from 1",
    "nvidia.com/gpu: 1, nvidia.com/gpucores: 500": "a whole number from 1 to 100",
    "nvidia.com/mig-1g.5gb.shared: 1": "a part of a slice (.shared) by a claim of class",
    "nvidia.com/mig-1g.5gb: 70": "allowed are 1 to 64",
    "nvidia.com/mig-1c.3g.20gb: 1": "compute instances that share a GPU instance are not made",
    "nvidia.com/gpumem: -1": "a whole number of MiB",
    "nvidia.com/gpu-10gb: 1": "MPS partitions of nos",
}


@pytest.mark.parametrize(("limits", "says"), REFUSED.items())
def test_what_has_no_counterpart_stays_and_says_why(
    convert: Command, lint: Command, limits: str, says: str
) -> None:
    ran = convert(pod(limits))
    assert ran.code == 1
    (made,) = objects(ran.out)
    assert made == yaml.safe_load(pod(limits))
    (line,) = (each for each in ran.out.splitlines() if each.startswith("#"))
    assert "f.yaml:10: error: Pod p: spec.containers[0].resources.limits." in line
    name = line.partition(".limits.")[2].partition(": ")[0]
    assert name in limits, "as it stands in the file"
    assert says in line
    linted = lint(pod(limits))
    assert (linted.code, says in linted.out) == (1, True)


@pytest.mark.parametrize(
    ("annotation", "says"),
    [
        ("nvidia.com/vgpu-mode: hami-core", "limits by a library (hami-core)"),
        ("volcano.sh/vgpu-mode: hami-core", "limits by a library (hami-core)"),
        ("nvidia.com/use-gputype: A100", "a selector on attribute productName"),
        ("nvidia.com/nouse-gpuuuid: GPU-1", "a selector on attribute parentUUID"),
        ("volcano.sh/vgpu-use-gpuuuid: GPU-1", "a selector on attribute parentUUID"),
        ("volcano.sh/vgpu-mode: mps", "a claim with sharing.strategy 'MPS'"),
    ],
)
def test_annotations_that_choose_what_limits_cannot_are_refused(
    convert: Command, annotation: str, says: str
) -> None:
    text = pod("nvidia.com/gpumem: 3000", metadata=f", annotations: {{{annotation}}}")
    ran = convert(text)
    (remark,) = [line for line in ran.out.splitlines() if line.startswith("#")]
    assert (ran.code, ": metadata.annotations." in remark, says in remark) == (1, True, True)
    assert objects(ran.out) == objects(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (pod("nvidia.com/gpu: 1"), "without an amount of memory it stays with the device plugin"),
        (pod("nvidia.com/gpu: 1"), "'nvidia.com/gpumem-percentage: 100' beside it for the slice"),
        (pod("volcano.sh/vgpu-memory: 3000"), "gpuMemoryFactor"),
        (
            pod(
                "nvidia.com/gpumem: 3000",
                metadata=", annotations: {hami.io/gpu-scheduler-policy: topology-aware}",
            ),
            "'topology-aware' counts as nothing here: allowed are binpack and spread",
        ),
        (
            pod(
                "volcano.sh/vgpu-memory: 3000",
                metadata=", annotations: {volcano.sh/vgpu-podgroup-policy: spread}",
            ),
            "it counts as nothing here: slices are spread over GPUs by hami.io/gpu-scheduler",
        ),
    ],
)
def test_what_changes_its_meaning_is_said(convert: Command, text: str, says: str) -> None:
    ran = convert(text)
    assert ran.code == 0
    assert "# f.yaml:" in ran.out
    assert says in ran.out


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.stem)
def test_the_examples_of_the_handbook_are_good_with_claims(
    convert: Command, lint: Command, file: Path
) -> None:
    assert lint(file.read_text()).code == 0
    ran = convert(file.read_text())
    assert (ran.code, [line for line in ran.out.splitlines() if line.startswith("#")]) == (0, [])
    linted = lint(ran.out, "--strict")
    assert linted.code == 0, linted.out


QUOTA = """
apiVersion: v1
kind: ResourceQuota
metadata: {name: q}
spec: {hard: {pods: 3, HARD: 4}}
"""
DEVICES = "deviceclass.resource.k8s.io/devices"


@pytest.mark.parametrize(
    ("hard", "counted"),
    [
        ("requests.nvidia.com/mig-1g.5gb", f"mig-1g.5gb.{DEVICES}"),
        ("requests.instaslice.redhat.com/mig-1g.5gb.me", f"mig-1g.5gb.me.{DEVICES}"),
        ("requests.mig.das.com/3g.20gb", f"mig-3g.20gb.{DEVICES}"),
    ],
)
def test_a_quota_counts_slices_by_class(
    convert: Command, lint: Command, hard: str, counted: str
) -> None:
    ran = convert(QUOTA.replace("HARD", hard))
    assert (ran.code, objects(ran.out)[0]["spec"]["hard"]) == (0, {"pods": 3, counted: 4})
    linted = lint(QUOTA.replace("HARD", hard), "--strict")
    assert (linted.code, f"write {counted}" in linted.out) == (1, True)


OTHERS = re.compile(
    r"volcano\.sh|instaslice\.redhat|mig\.das|das-scheduler|gpu\.nvidia\.com|gpumem:"
)


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("others/*.yaml")), ids=lambda file: file.stem)
def test_the_manifests_of_other_systems_are_good_with_claims(
    convert: Command, lint: Command, file: Path
) -> None:
    ran = convert(file.read_text())
    made = yaml.safe_dump_all(objects(ran.out))
    assert (ran.code, OTHERS.findall(made)) == (0, []), ran.out
    linted = lint(made, "--strict")
    assert linted.code == 0, linted.out


@pytest.mark.parametrize(
    ("at", "whole"),
    [
        ("jobset.x-k8s.io/v1alpha2 JobSet spec.replicatedJobs.0.template.spec.template", True),
        ("batch.volcano.sh/v1alpha1 Job spec.tasks.0.template", True),
        ("ray.io/v1 RayCluster spec.headGroupSpec.template", True),
        ("serving.kserve.io/v1beta1 InferenceService spec.predictor", False),
    ],
)
def test_pods_inside_custom_resources_are_rewritten_where_they_stand(
    convert: Command, lint: Command, at: str, *, whole: bool
) -> None:
    version, kind, path = at.split()
    containers = [{"name": "c", "resources": {"limits": {"mig.das.com/1g.5gb": 1}}}]
    inner: Obj = {"spec": {"containers": containers}} if whole else {"containers": containers}
    for step in reversed(path.split(".")):
        inner = [inner] if step == "0" else {step: inner}  # type: ignore[assignment]
    text = yaml.safe_dump({"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, **inner})
    told = lint(text).out
    assert "nothing here serves limits of mig.das.com/1g.5gb" in told
    ran = convert(text)
    template, made = objects(ran.out)
    assert (ran.code, template["kind"]) == (0, "ResourceClaimTemplate")
    for step in path.split("."):
        made = made[int(step)] if step == "0" else made[step]  # type: ignore[index]
    spec = made["spec"] if whole else made
    assert [e["name"] for e in spec["resourceClaims"]] == ["mig-1g-5gb-0"]
    assert spec["containers"][0]["resources"]["claims"] == [{"name": "mig-1g-5gb-0"}]
    assert lint(ran.out, "--strict").code == 0
