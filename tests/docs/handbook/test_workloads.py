"""The manifests of docs/examples/workloads and gitops: fields, slices, and what is left alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cli.program import main
from dra.common.resources import RESOURCE_CLAIMS, Obj
from dra.gpu.names import MigDevice, parse_device
from hack.cluster.chart import render
from tests.controller.helpers.bench import Bench
from tests.docs.handbook.blocks import ROOT
from tests.helpers.fields import is_known, unknown_fields

PAGE = ROOT / "docs/workloads.md"
EXAMPLES = sorted((ROOT / "docs/examples/workloads").glob("*.yaml"))
GITOPS = ROOT / "docs/examples/gitops"
PODS = {
    "Job": ("spec", "template", "spec"),
    "Deployment": ("spec", "template", "spec"),
    "InferenceService": ("spec", "predictor"),
}
OF_KSERVE = {"minReplicas", "maxReplicas"}


def documents(path: Path) -> list[Obj]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


def pods(document: Obj) -> Iterator[Obj]:
    """The specs of the pods that an object makes."""
    if document["kind"] == "RayCluster":
        spec = document["spec"]
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
            yield group["template"]["spec"]
    elif document["kind"] in PODS:
        found = document
        for step in PODS[document["kind"]]:
            found = found[step]
        yield {name: value for name, value in found.items() if name not in OF_KSERVE}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_kubernetes_has_every_field(path: Path) -> None:
    for document in documents(path):
        model = f"V1{document['kind']}"
        if is_known(model):
            assert [*unknown_fields(model, document)] == []
        for spec in pods(document):
            assert [*unknown_fields("V1PodSpec", spec)] == []


@pytest.fixture(scope="module")
def bench() -> Bench:
    """The pods of all manifests, one of each template, and their claims on three A100s."""
    bench = Bench("node-a", "node-b", "node-c")
    for path in EXAMPLES:
        found = documents(path)
        bodies = {d["metadata"]["name"]: d["spec"] for d in found if "Template" in d["kind"]}
        bodies |= {
            d["metadata"]["name"]: {"spec": d["spec"]}
            for d in found
            if d["kind"] == "ResourceClaim"
        }
        asking = (spec for document in found for spec in pods(document) if "resourceClaims" in spec)
        for spec in asking:
            (entry,) = spec["resourceClaims"]
            source = entry.get("resourceClaimName") or entry["resourceClaimTemplateName"]
            meta = {"name": path.stem, "namespace": "default"}
            bench.claim({"metadata": meta, **bodies[source]})
            status = [{"name": entry["name"], "resourceClaimName": path.stem}]
            status = [] if "resourceClaimName" in entry else status
            body = {"kind": "Pod", "metadata": meta, "spec": spec}
            bench.pod({**body, "status": {"resourceClaimStatuses": status}})
    bench.run()
    return bench


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_pod_that_asks_gets_one_slice(path: Path, bench: Bench) -> None:
    claim = bench.api.get(RESOURCE_CLAIMS, path.stem)
    results = claim["status"]["allocation"]["devices"]["results"]
    assert [type(parse_device(each["device"])) for each in results] == [MigDevice]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_lint_has_nothing_to_say(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["lint", str(path)])
    assert (code, capsys.readouterr().err) == (0, "")


def test_the_page_lists_every_manifest() -> None:
    listed = set(re.findall(r"examples/((?:workloads|gitops)/[\w-]+\.yaml)", PAGE.read_text()))
    folder = ROOT / "docs/examples"
    there = {str(p.relative_to(folder)) for p in (*EXAMPLES, *GITOPS.glob("*.yaml"))}
    assert listed == there


@pytest.mark.parametrize("name", ["argocd", "flux"])
def test_gitops_names_the_chart_and_values_that_it_takes(name: str) -> None:
    application = documents(GITOPS / f"{name}.yaml")[-1]
    spec = application["spec"]
    if name == "argocd":
        path, values = spec["source"]["path"], spec["source"]["helm"]["valuesObject"]
    else:
        path, values = spec["chart"]["spec"]["chart"], spec["values"]
    assert (ROOT / path / "Chart.yaml").is_file()
    assert render(values)
