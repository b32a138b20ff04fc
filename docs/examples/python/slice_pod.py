"""A MIG slice from Python, with Kubernetes' official client (``pip install kubernetes``)."""

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial

from kubernetes import client, config


@contextlib.contextmanager
def slice_pod(
    image: str,
    command: list[str],
    *,
    device_class: str = "mig-min-5gb",
    namespace: str = "default",
    seconds: float = 300,
) -> Iterator[Callable[..., str]]:
    """Yields a function that returns the log of a pod with a slice; both go at the end.

    Raises TimeoutError, which says what the pod waits for, if it does not start in ``seconds``.
    """
    config.load_config()
    core, resource = client.CoreV1Api(), client.ResourceV1Api()
    meta = {"generateName": "slice-"}
    request = {"name": "slice", "exactly": {"deviceClassName": device_class}}
    claim = {"metadata": meta, "spec": {"devices": {"requests": [request]}}}
    claim = resource.create_namespaced_resource_claim(namespace, claim).metadata.name
    main = {"name": "main", "image": image, "command": command}
    main["resources"] = {"claims": [{"name": "gpu"}]}
    spec = {"restartPolicy": "Never", "containers": [main]}
    spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim}]
    pod = None
    try:
        pod = core.create_namespaced_pod(namespace, {"metadata": meta, "spec": spec}).metadata.name
        end = time.monotonic() + seconds
        while (now := core.read_namespaced_pod(pod, namespace).status).phase == "Pending":
            if time.monotonic() > end:
                why = [each.message for each in now.conditions or () if each.status == "False"]
                raise TimeoutError(f"{why}; kubectl mig explain pod {pod} -n {namespace} says more")
            time.sleep(0.5)
        yield partial(core.read_namespaced_pod_log, pod, namespace)
    finally:
        if pod:
            core.delete_namespaced_pod(pod, namespace)
        resource.delete_namespaced_resource_claim(claim, namespace)


if __name__ == "__main__":
    with slice_pod("ubuntu:24.04", ["sh", "-c", "nvidia-smi -L"]) as log:
        print(log(follow=True))  # waits for its end
