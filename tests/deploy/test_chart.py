"""The chart: what it renders is valid and safe, and what it is given is checked."""

from __future__ import annotations

import functools

import helm_python
import kubernetes_validate
import pytest
import yaml

from hack.cluster.chart import CHART, REPOSITORY, Obj, find, notes, pod_spec, render

VALUES: dict[str, Obj] = {
    "defaults": {},
    "simulated": {
        "simulated": {"enabled": True, "nodes": {"one": ["A30"], "two": ["B200", "A30"]}},
        "image": {"registry": "registry.example:5000/gpu", "pullSecrets": ["pull"]},
    },
    "scheduler": {"allocator": "scheduler", "driverName": "other.example.com"},
    "everything": {
        "fullnameOverride": "gpu-slices",
        "controller": {
            "tolerations": [{"key": "infra", "operator": "Exists", "effect": "NoSchedule"}],
            "affinity": {"podAntiAffinity": {}},
            "nodeSelector": {"role": "infra"},
            "podLabels": {"team": "gpu", "app.kubernetes.io/name": "mine"},
            "podAnnotations": {"note": "1"},
            "podDisruptionBudget": {"maxUnavailable": "50%"},
        },
        "kubeletPlugin": {
            "driverRoot": "/run/nvidia/driver",
            "kubeletRoot": "/srv/kubelet",
            "nodeSelector": {"gpu": "yes"},
            "podLabels": {"team": "gpu"},
            "podAnnotations": {"note": "1"},
            "maxSurge": "10%",
            "image": {"tag": "v1"},
        },
        "metrics": {"port": 9400, "podMonitor": {"enabled": True, "labels": {"release": "prom"}}},
        "networkPolicy": {
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
        },
    },
    "webhook": {"webhook": {"enabled": True}, "driverName": "other.example.com"},
    "bare": {
        "crd": {"install": False},
        "admissionPolicies": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "controller": {"podDisruptionBudget": {"enabled": False}, "replicas": 1},
        "kubeletPlugin": {
            "nodeSelectorTerms": [],
            "tolerations": [],
            "maxSurge": 0,
            "maxUnavailable": "25%",
        },
    },
}
MONITORING = "monitoring.coreos.com/v1"
COMPONENTS = ("controller", "kubelet-plugin")


@functools.cache
def rendered(name: str) -> list[Obj]:
    return render(VALUES[name])


def containers(objects: list[Obj]) -> list[Obj]:
    specs = [pod_spec(objects, component) for component in COMPONENTS]
    return [
        each for spec in specs for each in [*spec.get("initContainers", []), *spec["containers"]]
    ]


@pytest.mark.parametrize("version", ["1.34", "1.37"])
@pytest.mark.parametrize("name", VALUES)
def test_every_object_is_valid_in_the_oldest_and_the_newest_kubernetes(
    name: str, version: str
) -> None:
    for each in rendered(name):
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
        ({"allocator": "both"}, "/allocator"),
        ({"driverName": "Mig.dra.dev"}, "/driverName"),
        ({"kubeletPlugin": {"driverPath": "/"}}, "driverPath"),
        ({"kubeletPlugin": {"cdiRoot": "var/run/cdi"}}, "/kubeletPlugin/cdiRoot"),
        ({"kubeletPlugin": {"driverRoot": "/a b"}}, "/kubeletPlugin/driverRoot"),
        ({"kubeletPlugin": {"maxUnavailable": 0}}, "/kubeletPlugin/maxUnavailable"),
        ({"kubeletPlugin": {"tolerations": [{"effects": "NoSchedule"}]}}, "effects"),
        ({"kubeletPlugin": {"nodeSelectorTerms": [{}]}}, "/kubeletPlugin/nodeSelectorTerms/0"),
        ({"controller": {"image": {"tag": "latest"}}}, "/controller/image/tag"),
        ({"controller": {"replicas": -1}}, "/controller/replicas"),
        (
            {"controller": {"resources": {"limits": {"memory": "much"}}}},
            "/controller/resources/limits/memory",
        ),
        ({"kubeletPlugin": {"maxSurge": -1}}, "/kubeletPlugin/maxSurge"),
        ({"networkPolicy": {"egressPorts": [0]}}, "/networkPolicy/egressPorts/0"),
        ({"networkPolicy": {"metricsFrom": [{"pods": {}}]}}, "/networkPolicy/metricsFrom/0"),
        ({"metrics": {"port": 0}}, "/metrics/port"),
        ({"metrics": {"podMonitor": {"interval": "often"}}}, "/metrics/podMonitor/interval"),
        ({"driverName": "d" * 52}, "/driverName"),
        ({"simulated": {"nodes": {"one": []}}}, "/simulated/nodes/one"),
        ({"simulated": {"gpus": ["A30; reboot"]}}, "/simulated/gpus/0"),
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
    source = yaml.safe_load((REPOSITORY / "api/crds/mignodes.yaml").read_text())
    crd = find(rendered("defaults"), "CustomResourceDefinition")
    assert (crd["metadata"]["name"], crd["spec"]) == (source["metadata"]["name"], source["spec"])
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


@pytest.mark.parametrize("name", VALUES)
def test_no_image_moves_and_no_container_is_without_bounds(name: str) -> None:
    for each in containers(rendered(name)):
        repository, _, tag = each["image"].rpartition(":")
        assert repository
        assert tag not in {"", "latest"}
        assert each["resources"]["limits"]["memory"]
        assert {"cpu", "memory"} <= each["resources"]["requests"].keys()
        assert each["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize("name", VALUES)
def test_only_the_plugin_over_real_gpus_is_privileged(name: str) -> None:
    privileged = [
        each["name"]
        for each in containers(rendered(name))
        if each["securityContext"].get("privileged")
    ]
    assert privileged == ([] if name == "simulated" else ["kubelet-plugin"])
    for each in containers(rendered(name)):
        if each["name"] not in privileged:
            assert each["securityContext"]["allowPrivilegeEscalation"] is False
            assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_controller_is_no_root_and_has_a_standby_elsewhere() -> None:
    objects = rendered("defaults")
    spec = pod_spec(objects, "controller")
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    deployment = find(objects, "Deployment")
    assert deployment["spec"]["replicas"] == 2
    (term,) = spec["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for selector in (
        term["podAffinityTerm"]["labelSelector"]["matchLabels"],
        deployment["spec"]["selector"]["matchLabels"],
        find(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        find(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()


@pytest.mark.parametrize("name", VALUES)
def test_a_label_of_the_user_does_not_break_the_selector(name: str) -> None:
    for each in rendered(name):
        if each["kind"] in {"Deployment", "DaemonSet"}:
            selector = each["spec"]["selector"]["matchLabels"]
            assert selector.items() <= each["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("name", "surge", "unavailable"),
    [("defaults", 1, 0), ("everything", "10%", 0), ("bare", 0, "25%")],
)
def test_a_new_plugin_starts_beside_the_old_one_or_after_it(
    name: str, surge: object, unavailable: object
) -> None:
    update = find(rendered(name), "DaemonSet")["spec"]["updateStrategy"]["rollingUpdate"]
    assert update == {"maxSurge": surge, "maxUnavailable": unavailable}


@pytest.mark.parametrize("name", VALUES)
def test_two_plugins_of_a_node_have_sockets_of_their_own_and_no_port_in_common(name: str) -> None:
    spec = pod_spec(rendered(name), "kubelet-plugin")
    (container,) = spec["containers"]
    assert "--instance=$(POD_UID)" in container["args"]
    (uid,) = (each for each in container["env"] if each["name"] == "POD_UID")
    assert uid["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.uid"}}
    assert "hostNetwork" not in spec
    assert all("hostPort" not in each for each in container["ports"])


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("component", COMPONENTS)
def test_kubelet_probes_the_port_on_which_metrics_are_served(name: str, component: str) -> None:
    (container,) = pod_spec(rendered(name), component)["containers"]
    port = VALUES[name].get("metrics", {}).get("port", 8080)
    assert container["ports"] == [{"name": "metrics", "containerPort": port, "protocol": "TCP"}]
    assert f"--metrics-address=:{port}" in container["args"]
    paths = {
        kind: container[kind]["httpGet"]
        for kind in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert paths == {
        "startupProbe": {"path": "/healthz", "port": "metrics"},
        "livenessProbe": {"path": "/healthz", "port": "metrics"},
        "readinessProbe": {"path": "/readyz", "port": "metrics"},
    }


def test_only_the_metrics_can_be_reached_and_only_by_who_is_named() -> None:
    (anybody,) = find(rendered("defaults"), "NetworkPolicy")["spec"]["ingress"]
    assert anybody == {"ports": [{"protocol": "TCP", "port": "metrics"}]}
    (named,) = find(rendered("everything"), "NetworkPolicy")["spec"]["ingress"]
    assert named["from"] == [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]


def test_prometheus_finds_both_daemons_where_it_is_asked_for() -> None:
    assert [each for each in rendered("defaults") if each["apiVersion"] == MONITORING] == []
    monitor = find(rendered("everything"), "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prom"
    for kind in ("Deployment", "DaemonSet"):
        labels = find(rendered("everything"), kind)["spec"]["template"]["metadata"]["labels"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("metrics", "/metrics")
    assert endpoint["honorLabels"] is True, "claims' namespaces and pods, not the plugin's"


def matches(term: Obj, labels: dict[str, str]) -> bool:
    found = True
    for each in term["matchExpressions"]:
        within = labels.get(each["key"]) in each["values"]
        found &= within if each["operator"] == "In" else not within
    return found


@pytest.mark.parametrize(
    ("labels", "chosen"),
    [
        ({}, False),
        ({"nvidia.com/gpu.present": "true"}, True),
        ({"nvidia.com/gpu.present": "true", "nvidia.com/mig.capable": "true"}, True),
        ({"nvidia.com/gpu.present": "true", "nvidia.com/mig.capable": "false"}, False),
        ({"feature.node.kubernetes.io/pci-10de.present": "true"}, True),
        ({"feature.node.kubernetes.io/pci-0302_10de.present": "true"}, True),
        ({"nvidia.com/gpu.present": "true", "mig.dra.dev/node": "false"}, False),
        ({"mig.dra.dev/node": "true"}, True),
        ({"mig.dra.dev/node": "true", "nvidia.com/mig.capable": "false"}, True),
    ],
)
def test_the_plugin_runs_where_a_label_shows_a_gpu(labels: dict[str, str], *, chosen: bool) -> None:
    spec = pod_spec(rendered("defaults"), "kubelet-plugin")
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert any(matches(term, labels) for term in required["nodeSelectorTerms"]) is chosen


@pytest.mark.parametrize("name", ["simulated", "bare"])
def test_the_plugin_can_run_on_every_linux_node(name: str) -> None:
    spec = pod_spec(rendered(name), "kubelet-plugin")
    assert "affinity" not in spec
    assert spec["nodeSelector"] == {"kubernetes.io/os": "linux"}


def test_every_volume_is_mounted_and_every_mount_is_a_volume() -> None:
    for name in VALUES:
        for component in COMPONENTS:
            spec = pod_spec(rendered(name), component)
            mounted = {
                mount["name"]
                for each in [*spec.get("initContainers", []), *spec["containers"]]
                for mount in each.get("volumeMounts", [])
            }
            assert mounted == {each["name"] for each in spec.get("volumes", [])}


def rules(objects: list[Obj], component: str) -> list[Obj]:
    found: list[Obj] = find(objects, "ClusterRole", component)["rules"]
    return found


@pytest.mark.parametrize("name", VALUES)
def test_no_role_grants_a_wildcard_or_secrets(name: str) -> None:
    for each in rendered(name):
        for rule in each.get("rules", []) if each["kind"].endswith("Role") else []:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert not {"configmaps", "pods/exec"} & set(rule["resources"])
            # The webhook's own certificate, by name; nothing that lists or creates.
            if "secrets" in rule["resources"]:
                assert name == "webhook"
                assert set(rule["verbs"]) == {"get", "update"}
                assert len(rule["resourceNames"]) == 1


def test_the_plugin_may_write_slices_only_where_the_scheduler_allocates() -> None:
    def slices(name: str) -> list[Obj]:
        found = rules(rendered(name), "kubelet-plugin")
        return [rule for rule in found if "resourceslices" in rule["resources"]]

    (before,), (now,) = slices("defaults"), slices("scheduler")
    assert set(before["verbs"]) == {"list", "delete"}
    assert set(now["verbs"]) == {"list", "watch", "create", "update", "delete"}


def test_the_drivers_name_stands_wherever_it_is_checked() -> None:
    (driver,) = (
        rule
        for rule in rules(rendered("scheduler"), "kubelet-plugin")
        if rule["resources"] == ["resourceclaims/driver"]
    )
    assert driver["resourceNames"] == ["other.example.com"]
    text = yaml.safe_dump_all(
        [each for each in rendered("scheduler") if each["kind"] != "CustomResourceDefinition"]
    )
    own = ("mignodes.mig.dra.dev", "mig.dra.dev/node")
    text = text.replace("apiGroups:\n      - mig.dra.dev", "")
    leftovers = [
        line.strip()
        for line in text.splitlines()
        if "mig.dra.dev" in line and not any(each in line for each in own)
    ]
    assert set(leftovers) <= {"- mig.dra.dev"}


@pytest.mark.parametrize("name", ["defaults", "simulated", "bare"])
def test_the_notes_say_how_to_go_on(name: str) -> None:
    text = notes(VALUES[name])
    assert "kubectl get mignodes" in text
    assert ("simulated" in text) is (name == "simulated")
    assert ("kubectl label node" in text) is (name == "defaults")
    assert "Before you uninstall" in text


def test_the_versions_are_the_projects() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (REPOSITORY / "pyproject.toml").read_text()
    assert f'\nversion = "{chart["appVersion"]}"\n' in project
