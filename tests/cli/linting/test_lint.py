"""``kubectl mig lint`` finds mistakes with their line, and leaves good manifests alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from cli.program import main
from tests.cli.linting.conftest import Command
from tests.dra.cel.hostile import busy

REPOSITORY = Path(__file__).parents[3]

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  resourceClaims:
  - name: gpu
    resourceClaimTemplateName: t
  containers:
  - name: main
    image: i
    resources:
      claims: [{name: gpu}]
"""
TEMPLATE = """\
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: t}
spec:
  spec:
    devices:
      requests:
      - name: slice
        exactly:
          deviceClassName: mig-1g.5gb
"""
CONFIG = """\
      config:
      - opaque:
          driver: mig.dra.dev
          parameters:
            apiVersion: mig.dra.dev/v1alpha1
            kind: MigDeviceConfig
            placement:
              policy: spread
"""


def test_good_manifests_are_left_alone(lint: Command) -> None:
    text = f"---\n# nothing\n---\n{POD}{TEMPLATE}{CONFIG}"
    ran = lint(text, "-o", "json")
    assert (ran.code, ran.json["remarks"]) == (0, [])


def test_what_this_repository_shows_has_no_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    for shown in ("sim/cluster/manifests", "hack/kind/demos"):
        assert main(["lint", "--strict", str(REPOSITORY / shown)]) == 0, capsys.readouterr().out


MISTAKES = [
    (
        "[{name: gpu}]",
        "[{name: gpu0}]",
        12,
        "no claim 'gpu0' in its resourceClaims; there are: gpu",
    ),
    ("resourceClaimTemplateName: t", "source: {resourceClaimName: t}", 6, "has one of resource"),
    ("resources:", "resources: [1]\n    x:", 11, "`array`: the API server refuses it"),
    ("deviceClassName: mig-1g.5gb", "count: 1", 22, "field `deviceClassName`: the API"),
    ("mig-1g.5gb", "mig-1g-5gb", 20, "does not exist; did you mean 'mig-1g.5gb'?"),
    (
        "mig-1g.5gb\n",
        "mig-1g.5gb\n      - {name: nic, exactly: {deviceClassName: nic.example.com}}\n",
        20,
        "(class 'mig-1g.5gb') and of others (class 'nic.example.com')",
    ),
    ("mig-1g.5gb\n", "mig-1g.5gb\n          allocationMode: Some\n", 20, "use ExactCount or All"),
    ("{name: gpu}]", "{name: gpu, request: slcie}]", 12, "no request 'slcie'; there are: slice"),
    ("  containers:\n", "  nodeName: n\n  containers:\n", 8, "must not name its node"),
    ("policy: spread", "policy: sprad", 31, "placement.policy"),
    ("policy: spread", "policies: spread", 31, "unknown field"),
    (
        "MigDeviceConfig\n            placement:\n              policy: spread",
        "GpuConfig\n            share:\n              tenants: any",
        31,
        "only a DeviceClass may say it",
    ),
    ("kind: Pod\n", "kind: Pod\n bad: x\n", 3, "no YAML"),
    (
        "            kind: MigDeviceConfig\n",
        "            kind: GpuConfig\n            sharing: {strategy: MPS}\n",
        24,
        "which is a slice: write kind MigDeviceConfig",
    ),
    (
        "            kind: MigDeviceConfig\n",
        "            kind: GpuConfig\n            share: {memoryMiB: 4096}\n",
        24,
        "which is a slice, and one claim has all of it: leave share out, ask for a part of a slice",
    ),
    (
        "            placement:\n",
        "            sharing: {strategy: TimeSlicing}\n            placement:\n",
        30,
        "allowed for slices are: None, MPS",
    ),
]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_its_line(lint: Command, mistake: tuple[str, str, int, str]) -> None:
    right, wrong, line, says = mistake
    text = POD + TEMPLATE + CONFIG
    assert right in text
    ran = lint(text.replace(right, wrong, 1), "-o", "json")
    assert ran.code == 1
    errors = [r for r in ran.json["remarks"] if r["level"] == "error"]
    assert any(says in r["message"] and r["line"] == line for r in errors), errors


CLASS = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: mine}
spec:
  selectors:
  - cel: {expression: "device.driver == 'mig.dra.dev'"}
"""
WARNINGS = [
    (CLASS.replace("==", "!="), "selects devices of other drivers too"),
    (CLASS.replace("dev'", "dev' || true"), "selects devices of other drivers too"),
    (CLASS.replace("dev'", f"dev' || {busy()}"), "cannot be found out whether it selects"),
    (POD.replace("claims: [{name: gpu}]", "{}") + TEMPLATE, "no container uses claim 'gpu'"),
    (
        POD + TEMPLATE + TEMPLATE.replace("1g.5gb", "5g.5gb").replace("name: t", "name: u"),
        "GPUs are",
    ),
    (POD.replace("Name: t", "Name: u") + TEMPLATE, "no ResourceClaimTemplate 'u' in these files"),
    (TEMPLATE.replace("mig-1g.5gb", "mig.nvidia.com"), "it is for NVIDIA's DRA driver"),
    (POD.replace("claims: [{name: gpu}]", 'limits: {nvidia.com/mig-1g.5gb: "1"}'), "extended"),
]


@pytest.mark.parametrize(("text", "says"), WARNINGS)
def test_what_works_otherwise_than_it_seems_is_a_warning(
    lint: Command, text: str, says: str
) -> None:
    ran = lint(text)
    assert (ran.code, says in ran.out) == (0, True)
    assert lint(text, "--strict").code == 1


@pytest.mark.parametrize(("value", "is_right"), [("4", True), ("four", False)])
def test_a_quota_that_cannot_be_read_is_an_error(
    lint: Command, value: str, *, is_right: bool
) -> None:
    annotation = f"name: mine, annotations: {{mig.dra.dev/devices-per-namespace: {value!r}}}"
    ran = lint(CLASS.replace("name: mine", annotation))
    assert ran.code == (0 if is_right else 1)
    assert is_right or "is 'four': write a whole number" in ran.out


def test_a_class_of_ours_or_of_others_alone_is_left_alone(lint: Command) -> None:
    assert lint(CLASS, "--strict").code == 0
    assert lint(CLASS.replace("mig.dra", "gpu.x"), "--strict").code == 0


SELECTORS = {
    "productName == 'NVIDIA A30'": True,
    "productName.matches('^NVIDIA H100')": True,
    "profile == '4g.4gb'": False,
    # Names of one product differ by board and driver.
    "profile == '1g.24gb' && device.attributes['mig.dra.dev'].productName == 'NVIDIA GB200'": True,
    "profile == '2g.24gb' && device.attributes['mig.dra.dev'].productName == 'NVIDIA GB200'": False,
    "productLabel == 'NVIDIA A30'": False,
    # These depend on the node, which no product tells.
    "driverVersion.isGreaterThan(semver('580.0.0'))": True,
    "parentUUID == 'GPU-7'": True,
}


@pytest.mark.parametrize(("condition", "may_match"), SELECTORS.items())
def test_a_selector_that_no_product_fulfils_is_told(
    lint: Command, condition: str, *, may_match: bool
) -> None:
    expression = f"device.attributes['mig.dra.dev'].{condition}"
    more = f'mig.dra.dev\n          selectors: [{{cel: {{expression: "{expression}"}}}}]'
    ran = lint(POD + TEMPLATE.replace("mig-1g.5gb", more))
    assert ("it selects no device of the 14 products" in ran.out) is not may_match, ran.out


def test_a_selector_that_misses_a_profile_by_little_is_told(lint: Command) -> None:
    memory = "device.capacity['mig.dra.dev'].memory.isGreaterThan(quantity('{}'))"
    for amount, missed in (("20Gi", True), ("19Gi", False), ("900Gi", False)):
        cel = f'{{expression: "{memory.format(amount)}"}}'
        selector = f"mig.dra.dev\n          selectors: [{{cel: {cel}}}]"
        ran = lint(POD + TEMPLATE.replace("mig-1g.5gb", selector))
        assert ("ask by class mig-min-20gb" in ran.out) is missed, ran.out


def test_what_asks_for_slices_in_a_way_that_is_not_known_is_named(lint: Command) -> None:
    odd = "apiVersion: apps.nvidia.com/v1alpha1\nkind: NIMService\nmetadata: {name: n}\nspec:\n"
    limits = odd + "  resources: {limits: {nvidia.com/gpu: 1}}\n"
    claims = odd + "  draResources: [{resourceClaimTemplateName: t}]\n"
    for text in (limits, claims):
        ran = lint(text)
        assert "f.yaml:5: warning: NIMService n: spec." in ran.out
        assert "1 object: 1 warning; not looked at, or in part: 1" in ran.out
    assert lint(limits.replace(": 1}", ": 0}"), "--strict").code == 0


def test_anything_that_is_yaml_is_survived(lint: Command) -> None:
    odd = (
        "[]\n---\n3\n---\nkind: Pod\nspec: []\n---\nkind: ResourceClaim\nspec: {devices: 3}\n---\n"
        "a: &a [*a]\n---\nkind: Deployment\nspec: {template: null}\n---\n? {a: b}\n: c\n---\n"
        "kind: CronJob\nspec:\n---\nd: 2020-99-99\n"
    )
    ran = lint(odd, "-o", "json")
    assert ran.code == 1
    assert "it is no Kubernetes object" in ran.json["remarks"][0]["message"]
    assert any("refers to itself" in r["message"] for r in ran.json["remarks"])
    file = {"kind": "ConfigMap", "data": {"a": "a: 2020-99-99", "b": "[" * 5000, "c": "x: ["}}
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(500)  # to parse takes time with the square of the depth
    try:
        assert lint(yaml.safe_dump(file)).out == "1 object: nothing to remark\n"
        assert "nested too deeply" in lint("[" * 5000).out
    finally:
        sys.setrecursionlimit(limit)


def test_of_objects_with_one_name_each_is_looked_at(lint: Command) -> None:
    wrong = TEMPLATE + CONFIG.replace("spread", "nearest")
    quota = CLASS.replace("mine", "mine, annotations: {mig.dra.dev/devices-per-namespace: four}")
    Path("later.yaml").write_text(f"{POD}{TEMPLATE}---\n{CLASS}")
    ran = lint(f"{wrong}---\n{quota}", "later.yaml", "-o", "json")
    errors = [r for r in ran.json["remarks"] if r["level"] == "error"]
    assert {(r["file"], r["object"]) for r in errors} == {
        ("f.yaml", "ResourceClaimTemplate t"),
        ("f.yaml", "DeviceClass mine"),
    }


def test_a_file_that_is_not_there_is_not_found(lint: Command) -> None:
    assert main(["lint", "absent.yaml"]) == 4
