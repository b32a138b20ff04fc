"""The pods of the chart: images, rights, probes, where they run, how they are updated."""

from __future__ import annotations

import pytest

from dra.common.resources import Obj
from hack.cluster.chart import find, pod_spec, render
from tests.deploy.chart.charts import COMPONENTS, VALUES, containers, rendered


@pytest.mark.parametrize("name", VALUES)
def test_no_image_moves_and_no_container_is_without_bounds(name: str) -> None:
    for each in containers(rendered(name)):
        repository, _, tag = each["image"].rpartition(":")
        assert repository
        assert tag not in {"", "latest"}
        assert each["resources"]["limits"]["memory"]
        assert {"cpu", "memory"} <= each["resources"]["requests"].keys()


@pytest.mark.parametrize("name", VALUES)
def test_only_the_plugin_over_real_gpus_is_privileged_and_no_other_may_more(name: str) -> None:
    """The runtime has no seccomp profile for a privileged container."""
    for each in containers(rendered(name)):
        context = each["securityContext"]
        privileged = each["name"] == "kubelet-plugin" and name != "simulated"
        assert context["readOnlyRootFilesystem"] is True
        assert bool(context.get("privileged")) is privileged
        if not privileged:
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        else:
            assert "seccompProfile" not in context
        root = each["name"] in {"kubelet-plugin", "gpus"}  # who writes to the node
        assert bool(context.get("runAsNonRoot")) is not root
        assert root or context["runAsUser"] == 65532


@pytest.mark.parametrize("name", VALUES)
def test_the_plugin_over_real_gpus_sees_the_processes_of_the_whole_node(name: str) -> None:
    for component in COMPONENTS:
        wanted = component == "kubelet-plugin" and name != "simulated"
        assert pod_spec(rendered(name), component).get("hostPID", False) is wanted


def test_the_controller_has_a_standby_elsewhere() -> None:
    objects = rendered("defaults")
    spec = pod_spec(objects, "controller")
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


DRA = "nvidia.com/gpu.deploy.dra-driver"


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
        ({"mig.dra.dev/node": "true", DRA: "false"}, True),
        ({"mig.dra.dev/node": "true", DRA: "true"}, False),
        ({"nvidia.com/gpu.present": "true", DRA: "true"}, False),
        ({"nvidia.com/gpu.present": "true", DRA: "paused-for-driver-upgrade"}, True),
    ],
)
def test_the_plugin_runs_where_a_label_shows_a_gpu(labels: dict[str, str], *, chosen: bool) -> None:
    spec = pod_spec(rendered("defaults"), "kubelet-plugin")
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert any(matches(term, labels) for term in required["nodeSelectorTerms"]) is chosen


def terms(plugin: Obj) -> list[Obj]:
    spec = pod_spec(render({"kubeletPlugin": plugin}), "kubelet-plugin")
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    found: list[Obj] = required["nodeSelectorTerms"]
    return found


def test_nodes_of_nvidias_dra_driver_are_left_out_of_terms_of_ones_own() -> None:
    own = {"key": "pool", "operator": "In", "values": ["gpu"]}
    field = {"key": "metadata.name", "operator": "In", "values": ["n"]}
    apart = {"key": DRA, "operator": "NotIn", "values": ["true"]}
    given = [{"matchExpressions": [own]}, {"matchFields": [field]}]
    assert terms({"nodeSelectorTerms": given}) == [
        {"matchExpressions": [own, apart]},
        {"matchFields": [field], "matchExpressions": [apart]},
    ]
    assert terms({"nodeSelectorTerms": []}) == [{"matchExpressions": [apart]}]
    assert terms({"nodeSelectorTerms": given, "nodeRequirements": []}) == given


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
