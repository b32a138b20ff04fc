"""Templates that the controller may write, and above all those that it may not."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest

from dra.common.resources import Obj
from dra.limits.rewriting import template
from hack.cluster.api import Api, ApiError, collection
from sim.processes import wait_for
from tests.cluster.rbac.requests import APPLY, DRIVER, refusal

OPTED, APART = "opted", "apart"


@pytest.fixture(scope="module", autouse=True)
def namespaces(admin: Api) -> Iterator[None]:
    for name, value in ((OPTED, "claims"), (APART, "no")):
        # So that it is not the API server that refuses adminAccess.
        labels = {"resource.kubernetes.io/admin-access": "true"}
        metadata = {"name": name, "labels": labels}
        admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        for each in THEIRS if name == OPTED else ():
            admin.create(theirs(each))
        admin.patch("Namespace", name, {"metadata": {"labels": {f"{DRIVER}/limits": value}}})
    again = theirs("nvidia.com-mig-3g.20gb")
    path = f"{collection('ResourceClaimTemplate', namespace=OPTED)}?dryRun=All"

    def guarded() -> bool:
        try:
            admin.request("POST", path, body=again)
        except ApiError as error:
            return "is made by the controller alone" in str(error)
        return False

    wait_for("label of the namespace", guarded)
    yield
    for name in (OPTED, APART):
        admin.delete("Namespace", name)


THEIRS = ("nvidia.com-mig-2g.10gb", "nvidia.com-gpumem-6000")
"""Templates that somebody had made before the namespace opted in; afterwards nobody may."""


def theirs(name: str) -> Obj:
    body = copy.deepcopy(template(name, OPTED, driver=DRIVER))
    del body["metadata"]["labels"]
    return body


def where(body: Obj) -> str:
    """Path by which it is applied, without being kept."""
    metadata = body["metadata"]
    path = collection("ResourceClaimTemplate", namespace=metadata["namespace"])
    return f"{path}/{metadata['name']}?fieldManager=mig.dra.dev/controller&force=true&dryRun=All"


def refused(controller: Api, body: Obj) -> str:
    status, text = refusal(controller, "PATCH", where(body), body=body, content=APPLY)
    assert status == 403
    return text


@pytest.mark.parametrize(
    "name", ["nvidia.com-mig-1g.5gb", "nvidia.com-gpumem-8000-node-binpack-gpu-spread"]
)
def test_those_of_limits_in_namespaces_that_opted_in(controller: Api, name: str) -> None:
    body = template(name, OPTED, driver=DRIVER)
    assert controller.request("PATCH", where(body), body=body, content=APPLY)["spec"]


def test_none_in_other_namespaces(controller: Api) -> None:
    text = refused(controller, template("nvidia.com-mig-1g.5gb", APART, driver=DRIVER))
    assert "only in namespaces with label mig.dra.dev/limits=claims" in text


def test_none_that_is_not_marked_as_its_own_or_has_another_name(controller: Api) -> None:
    body = template("nvidia.com-mig-1g.5gb", OPTED, driver=DRIVER)
    bare, other = copy.deepcopy(body), copy.deepcopy(body)
    del bare["metadata"]["labels"]
    other["metadata"]["name"] = "mine"
    for each in (bare, other):
        assert "only that it made" in refused(controller, each)


def test_none_that_somebody_else_made(controller: Api) -> None:
    body = template(THEIRS[0], OPTED, driver=DRIVER)
    assert "only that it made" in refused(controller, body)


def test_none_that_looks_at_gpus_or_configures_another_driver(controller: Api) -> None:
    body = template("nvidia.com-gpumem-8000-gpu-spread", OPTED, driver=DRIVER)
    looks, foreign = copy.deepcopy(body), copy.deepcopy(body)
    looks["spec"]["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] = True
    foreign["spec"]["spec"]["devices"]["config"][0]["opaque"]["driver"] = "gpu.nvidia.com"
    for each in (looks, foreign):
        assert "only that ask for slices" in refused(controller, each)


def test_those_that_it_made_it_may_delete_and_no_others(controller: Api, admin: Api) -> None:
    made = template("nvidia.com-gpumem-7000", APART, driver=DRIVER)
    admin.create(made)
    for body, status in ((theirs(THEIRS[1]), 403), (made, 200)):
        metadata = body["metadata"]
        path = collection("ResourceClaimTemplate", namespace=metadata["namespace"])
        where = f"{path}/{metadata['name']}"
        if status == 200:
            controller.request("DELETE", where)
            continue
        found, text = refusal(controller, "DELETE", where)
        assert found == status
        assert "only that it made" in text
