"""The chart: what it renders is valid and safe, and what it is given is checked."""

from __future__ import annotations

import functools

import helm_python
import kubernetes_validate
import pytest
import yaml

from api.crds import mignode_definition
from dra.common.resources import Obj
from hack.cluster.chart import CHART, REPOSITORY, find, pod_spec, render
from tests.deploy.chart.charts import MONITORING, VALUES, rendered, rules


@pytest.fixture(autouse=True)
def schemas_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Megabytes of JSON, which the library reads again for every object."""
    monkeypatch.setattr(kubernetes_validate.utils, "schema_contents", contents)


contents = functools.cache(kubernetes_validate.utils.schema_contents)


@pytest.mark.parametrize("version", ["1.34", "1.37"])
@pytest.mark.parametrize("name", VALUES)
def test_every_object_is_valid_in_the_oldest_and_the_newest_kubernetes(
    name: str, version: str
) -> None:
    for each in rendered(name):
        if each["kind"].startswith("MutatingAdmissionPolicy") and version == "1.34":
            continue  # of which there is none in that version
        if each["apiVersion"] != MONITORING:  # which is not Kubernetes' own
            kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("name", VALUES)
def test_helm_lints_without_warning(name: str) -> None:
    report = helm_python.lint(CHART, VALUES[name], strict=True)
    assert report["errors"] == []
    assert [each for each in report["messages"] if each["severity"] > 1] == []


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"allocators": "controller"}, "allocators"),
        ({"driverName": "Mig.dra.dev"}, "/driverName"),
        ({"kubeletPlugin": {"driverPath": "/"}}, "driverPath"),
        ({"kubeletPlugin": {"cdiRoot": "var/run/cdi"}}, "/kubeletPlugin/cdiRoot"),
        ({"kubeletPlugin": {"maxUnavailable": 0}}, "/kubeletPlugin/maxUnavailable"),
        ({"kubeletPlugin": {"tolerations": [{"effects": "NoSchedule"}]}}, "effects"),
        ({"kubeletPlugin": {"nodeSelectorTerms": [{}]}}, "/kubeletPlugin/nodeSelectorTerms/0"),
        ({"controller": {"image": {"tag": "latest"}}}, "/controller/image/tag"),
        (
            {"controller": {"resources": {"limits": {"memory": "much"}}}},
            "/controller/resources/limits/memory",
        ),
        ({"networkPolicy": {"metricsFrom": [{"pods": {}}]}}, "/networkPolicy/metricsFrom/0"),
        ({"driverName": "d" * 52}, "/driverName"),
        ({"simulated": {"nodes": {"one": []}}}, "/simulated/nodes/one"),
        ({"simulated": {"gpus": ["A30; reboot"]}}, "/simulated/gpus/0"),
        ({"kubeletPlugin": {"extraArgs": ["--enable-mig --x", "y"]}}, "extraArgs/1"),
        ({"controller": {"extraEnv": [{"key": "x"}]}}, "extraEnv/0"),
        ({"kubeletPlugin": {"nvmlTimeout": 0}}, "nvmlTimeout"),
        ({"kubeletPlugin": {"ignoreXids": "some"}}, "ignoreXids"),
        ({"kubeletPlugin": {"fatalXids": "all"}}, "fatalXids"),
        ({"controller": {"updateStrategy": {"type": "OnDelete"}}}, "updateStrategy"),
        ({"bindingConditions": "sometimes"}, "/bindingConditions"),
        (
            {"bindingConditions": "always", "eagerCreation": {"enabled": False}},
            "needs eagerCreation.enabled: true",
        ),
    ],
)
def test_a_bad_value_is_refused_and_named(values: Obj, named: str) -> None:
    with pytest.raises(helm_python.HelmError, match=named):
        render(values)


@pytest.mark.parametrize("name", VALUES)
def test_every_default_is_described_by_the_schema(name: str) -> None:
    """Every key of values.yaml is known, and nothing else is: `additionalProperties` is false."""
    with helm_python.Chart.load(CHART) as chart:
        assert chart.schema is not None
        chart.validate_schema(VALUES[name])
        for path, schema in _objects(chart.schema):
            assert schema.get("additionalProperties", True) is not True or path in {
                "/global",
                "/controller/affinity",
            }, path


def _objects(schema: Obj, path: str = "") -> list[tuple[str, Obj]]:
    found = [(path, schema)] if schema.get("type") == "object" else []
    for name, each in schema.get("properties", {}).items():
        found += _objects(each, f"{path}/{name}")
    return found


def test_the_custom_resource_is_the_one_of_the_repository() -> None:
    source = mignode_definition()
    crd = find(rendered("defaults"), "CustomResourceDefinition")
    assert (crd["metadata"]["name"], crd["spec"]) == (source["metadata"]["name"], source["spec"])
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_the_drivers_name_stands_wherever_it_is_checked() -> None:
    (driver,) = (
        rule
        for rule in rules(rendered("scheduler"), "kubelet-plugin")
        if rule["resources"] == ["resourceclaims/driver"]
    )
    assert driver["resourceNames"] == ["other.example.com"]
    text = yaml.safe_dump_all(
        [each for each in rendered("scheduler") if each["kind"] != "CustomResourceDefinition"],
        width=10**5,
    )
    own = ("mignodes.mig.dra.dev", "mig.dra.dev/node", "mig.dra.dev/v1alpha1")
    text = text.replace("apiGroups:\n      - mig.dra.dev", "")
    leftovers = [
        line.strip()
        for line in text.splitlines()
        if "mig.dra.dev" in line and not any(each in line for each in own)
    ]
    assert set(leftovers) <= {"- mig.dra.dev"}


def test_the_versions_are_the_projects() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (REPOSITORY / "pyproject.toml").read_text()
    assert f'\nversion = "{chart["appVersion"]}"\n' in project


def test_files_of_node_classes_are_mounted() -> None:
    objects = render(VALUES["renamed"])
    made = find(objects, "ConfigMap", "-classes")
    text = yaml.safe_load(made["data"]["default.yaml"])
    assert text == {"apiVersion": "mig.dra.dev/v1alpha1", "kind": "MigNodeClass"}
    names = [made["metadata"]["name"], "mig-parted"]
    volumes = {v["name"]: v for v in pod_spec(objects, "kubelet-plugin")["volumes"]}
    sources = volumes["node-classes"]["projected"]["sources"]
    assert [s["configMap"]["name"] for s in sources] == names
    controller = pod_spec(objects, "controller")
    [volume] = controller["volumes"]
    sources = volume["projected"]["sources"]
    assert [s["configMap"]["name"] for s in sources] == names
    assert all(s["configMap"]["optional"] for s in sources), "it starts without"
    [container] = controller["containers"]
    [mount] = container["volumeMounts"]
    assert (mount["name"], mount["readOnly"]) == (volume["name"], True)
    assert f"--node-classes={mount['mountPath']}" in container["args"]
    assert not [
        v for v in pod_spec(render(), "kubelet-plugin")["volumes"] if "classes" in v["name"]
    ]
    assert "volumes" not in pod_spec(render(), "controller")
