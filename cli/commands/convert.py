"""``kubectl mig convert``: manifests of other systems, rewritten for this driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import yaml

from api.nodeclass import is_layouts
from cli.linting.administration import check_layouts, convert_quota
from cli.linting.documents import Document, Level, Remark, read_files
from cli.linting.nvidia import convert_claim
from cli.linting.pods import PodSpec, pods_of, remarks_of
from cli.output import Exit, Output
from dra.common.resources import DEVICE_CLASSES, Obj, ObjectKey
from dra.limits.others import Translation, translate
from dra.limits.rewriting import rewritten, template


def run(out: Output, *, file: Sequence[str], driver: str) -> int:
    """Print every object: pods that ask by limits with claims, other objects as they are.

    A file of mig-parted's is printed as a ConfigMap. Claims for NVIDIA's DRA driver become claims
    for this one.
    """
    objects: list[Obj] = []
    remarks: list[Remark] = []
    templates: dict[ObjectKey, None] = {}
    everything = [*read_files(file)]
    documents = [each for each in everything if isinstance(each, Document)]
    classes = {each.name for each in documents if each.is_a(DEVICE_CLASSES)}
    for found in everything:
        if isinstance(found, Remark):
            remarks.append(found)
            continue
        for pod in pods_of(found):
            if isinstance(pod, Remark):
                remarks.append(pod)
                continue
            translation = translate(pod.whole)
            remarks += remarks_of(pod, translation)
            if not translation.refused:
                templates.update(dict.fromkeys(_convert(found, pod, translation)))
        remarks += [*convert_claim(found, driver, classes), *convert_quota(found)]
        if is_layouts(found.obj):
            remarks += check_layouts(found)
            objects.append(_config_map(found.obj))
        else:
            objects.append(found.obj)
    objects = [*(_template(*key, driver) for key in templates), *objects]
    _print(out, objects, remarks)
    return Exit.FINDING if any(r.level is Level.ERROR for r in remarks) else Exit.OK


def _print(out: Output, objects: Sequence[Obj], remarks: Sequence[Remark]) -> None:
    for remark in remarks:
        out.line(f"# {remark.shown()}")
    for number, each in enumerate(objects):
        if number:
            out.line("---")
        out.document(yaml.safe_dump(each, sort_keys=False))


def _convert(document: Document, pod: PodSpec, translation: Translation) -> Iterator[ObjectKey]:
    """Put the translated pod into its document; yields the templates that it needs."""
    before, after = translation.pod, rewritten(translation.pod)
    pod.put(after)
    known = len(before["spec"].get("resourceClaims") or ())
    for entry in (after["spec"].get("resourceClaims") or ())[known:]:
        yield document.key[0], entry["resourceClaimTemplateName"]


def _config_map(layouts: Obj) -> Obj:
    """A ConfigMap that holds a file of mig-parted's, for the chart's nodeClasses.configMaps."""
    data = {"config.yaml": yaml.safe_dump(layouts, sort_keys=False)}
    metadata = {"name": "mig-parted"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _template(namespace: str, name: str, driver: str) -> Obj:
    """The template of this name, without the label by which the controller knows its own."""
    made = template(name, namespace, driver=driver)
    metadata = {"name": name, "namespace": namespace} if namespace else {"name": name}
    return {**made, "metadata": metadata}
