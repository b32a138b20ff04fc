"""``kubectl mig bundle``: what a helper needs is in it, what is nobody's business is not."""

from __future__ import annotations

import json
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli import redaction
from dra.common.resources import CUSTOM_RESOURCE_DEFINITIONS, MIG_NODES, PODS, RESOURCE_CLAIMS
from tests.cli.conftest import Mig
from tests.cli.world import NAMESPACE, World
from tests.controller.helpers.objects import DRIVER, claim, pod
from tests.dra.gpus import A100

SECRET = "hunter2-of-the-tenant"


def opened(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        found = {}
        for member in archive.getmembers():
            content = archive.extractfile(member)
            assert content is not None
            found[member.name.partition("/")[2]] = content.read().decode()
    return found


def documents(text: str) -> list[Any]:
    return list(yaml.safe_load_all(text))


@pytest.fixture
def cluster(world: World) -> World:
    world.add_classes(*(p.name for p in A100.profiles))
    world.lead()
    world.add_node("node-a")
    world.add_plugin("node-a", ready=True)
    other = {"opaque": {"driver": "nic.example", "parameters": {"key": SECRET}}}
    body = claim("c", config=[other])
    body["metadata"]["annotations"] = {"a.example/note": SECRET}
    world.api.create(RESOURCE_CLAIMS, body)
    body = pod("p", "c")
    body["metadata"]["labels"] = {"customer": SECRET}
    container = body["spec"]["containers"][0]
    container |= {"args": [SECRET], "env": [{"name": "PASSWORD", "value": SECRET}]}
    world.api.create(PODS, body)
    world.tell(world.api.get(PODS, "p", namespace="default"), "WaitingForSlice", "no room")
    return world


def test_a_bundle_has_the_state_of_the_driver_and_no_tenants_secret(
    cluster: World, mig: Mig, tmp_path: Path
) -> None:
    path = tmp_path / "b.tar.gz"
    ran = mig("bundle", "--file", str(path))
    assert (ran.code, ran.err) == (0, "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    files = opened(path)
    assert SECRET not in "".join(files.values())

    assert json.loads(files["doctor.json"])["kind"] == "Diagnosis"
    assert "node-a" in files["map.txt"]
    assert documents(files["mignodes.yaml"])[0]["status"]["gpus"]
    assert [c["metadata"]["name"] for c in documents(files["resourceclaims.yaml"])] == ["c"]
    waiting = documents(files["pods.yaml"])[0]
    assert waiting["spec"]["resourceClaims"][0]["resourceClaimName"] == "c"
    plugin = documents(files["driver-pods.yaml"])[0]
    assert plugin["spec"]["containers"][0]["image"] == "example/kubelet-plugin:0.1.0"
    assert documents(files["events.yaml"])[0]["message"] == "no room"
    assert documents(files["leases.yaml"])[0]["spec"]["holderIdentity"] == "controller-0"


def test_what_could_not_be_read_is_said(cluster: World, mig: Mig, tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    body = cluster.api.get(PODS, "plugin-node-a", namespace=NAMESPACE)
    container = {
        **body["spec"]["containers"][0],
        "ports": [{"name": "metrics", "containerPort": 8}],
    }
    metadata = {"name": "b", "namespace": NAMESPACE, "labels": body["metadata"]["labels"]}
    cluster.api.create(PODS, {"metadata": metadata, "spec": {"containers": [container]}})
    ran = mig("bundle", "-f", str(path), "-o", "json")
    missing = ran.json["missing"]
    logs = [m for m in missing if m.startswith("logs/plugin-node-a-")]
    assert len(logs) == 1  # the embedded server has none
    assert logs[0] in opened(path)["README.txt"]
    assert [m.partition(":")[0] for m in missing if m not in logs] == ["metrics/b.txt"]


def test_a_bundle_is_made_where_the_driver_is_not_installed(
    world: World, mig: Mig, tmp_path: Path
) -> None:
    definition = world.api.get(CUSTOM_RESOURCE_DEFINITIONS, str(MIG_NODES))
    world.api.delete(CUSTOM_RESOURCE_DEFINITIONS, str(MIG_NODES))
    try:
        path = tmp_path / "b.tar.gz"
        assert mig("bundle", "--file", str(path)).code == 0
    finally:
        metadata = {"name": definition["metadata"]["name"]}
        world.api.create(CUSTOM_RESOURCE_DEFINITIONS, {**definition, "metadata": metadata})
    said = opened(path)["README.txt"]
    assert "map.txt: the cluster does not know mignodes.mig.dra.dev" in said


def test_a_bundle_replaces_no_file_and_leaves_no_half_one(
    cluster: World, mig: Mig, tmp_path: Path
) -> None:
    path = tmp_path / "b.tar.gz"
    path.write_text("mine")
    ran = mig("bundle", "--file", str(path))
    assert (ran.code, path.read_text()) == (2, "mine")
    assert "name another file by --file" in ran.err

    ran = mig("bundle", "--file", str(tmp_path / "nowhere" / "b.tar.gz"))
    assert ran.code == 2
    assert "cannot be written" in ran.err
    assert [p.name for p in tmp_path.iterdir()] == ["b.tar.gz"]


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("Authorization: Bearer abcDEF123.456", "Authorization: Bearer redacted"),
        ('token="abcdefgh1234"', 'token="redacted"'),
        ("token: abcdefgh1234 and more", "token: redacted and more"),
        ("claim default/c has a slice", "claim default/c has a slice"),
        ("gpu-0-mig-1g5gb-19-0", "gpu-0-mig-1g5gb-19-0"),
    ],
)
def test_credentials_in_logs_are_redacted(line: str, kept: str) -> None:
    assert redaction.log(line) == kept


def test_parameters_of_others_are_redacted_and_ours_are_not() -> None:
    mine = {"opaque": {"driver": DRIVER, "parameters": {"a": 1}}}
    other = {"opaque": {"driver": "nic.example", "parameters": {"a": SECRET}}}
    told = [
        {"driver": "nic.example", "data": {"mac": SECRET}},
        {"driver": DRIVER, "data": {"b": 1}},
    ]
    body = claim("c", config=[mine, other]) | {"status": {"devices": told}}
    found = redaction.claim(body, DRIVER)
    assert found["spec"]["devices"]["config"] == [
        mine,
        {"opaque": {"driver": "nic.example", "parameters": "redacted"}},
    ]
    assert found["status"]["devices"] == [{**told[0], "data": "redacted"}, told[1]]
