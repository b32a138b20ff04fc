"""Run of a command: its session with the cluster, and an exit code for every error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import msgspec

from cli.output import CliError, Exit, Output, harmless
from dra.cel.questions import Evaluator
from dra.common.resources import (
    DEVICE_CLASSES,
    MIG_NODES,
    NAMESPACES,
    PODS,
    RESOURCE_CLAIMS,
    Obj,
)
from dra.gpu.mignode import from_mignode
from dra.gpu.names import DEFAULT_DRIVER
from dra.kube import errors
from dra.kube.client import KubeApi
from dra.kube.connection import Connection
from dra.kube.http import HttpClient, Keep
from dra.kube.kubeconfig import load_access
from dra.sandbox.process import Sandbox, SandboxError

_COMPLETION_SECONDS = 3.0
_OF_CEL = ("cel_expr_python", "re2")
"""Modules that are needed to evaluate selectors."""
_OF_CLUSTER = frozenset({"kubeconfig", "context", "namespace", "driver_name", "request_timeout"})
_RESOURCES = {
    "node": MIG_NODES,
    "pod": PODS,
    "claim": RESOURCE_CLAIMS,
    "class": DEVICE_CLASSES,
    "namespace": NAMESPACES,
}


@dataclass(frozen=True, slots=True)
class Session:
    """One run of a command. ``now``: the time in UTC."""

    api: KubeApi
    out: Output
    namespace: str
    now: Callable[[], datetime]
    driver: str = DEFAULT_DRIVER


class HarmlessClient(HttpClient):
    """Client whose answers have no characters that a terminal would obey, whoever wrote them."""

    def call(self, *args: Any, **kwargs: Any) -> Obj:
        """The server's answer, made harmless."""
        found: Obj = _harmless(super().call(*args, **kwargs))
        return found

    def item(self, raw: msgspec.Raw, keep: Keep) -> Obj | None:
        """The kept part of an item of a list, made harmless."""
        found: Obj | None = _harmless(super().item(raw, keep))
        return found


def _harmless(found: Any) -> Any:
    if isinstance(found, str):
        return found if found.isascii() and found.isprintable() else harmless(found)
    if isinstance(found, dict):
        return {_harmless(key): _harmless(value) for key, value in found.items()}
    return [*map(_harmless, found)] if isinstance(found, list) else found


def run_command(name: str, options: dict[str, Any], *, offline: bool) -> int:
    """Run a command with the options of its command line; returns the exit code.

    ``name``: module and function below ``cli.commands``. The function is given its own options and
    a session, or the output alone if it works ``offline``, without a cluster.
    """
    out = Output(sys.stdout, form=options.pop("output"), color=not options.pop("no_color"))
    own = {key: value for key, value in options.items() if key not in _OF_CLUSTER}
    module, _, function = name.partition(".")
    command = getattr(import_module(f"cli.commands.{module}"), function)
    try:
        if offline:
            return int(command(out, driver=options["driver_name"], **own))
        with _connected(options, out, seconds=options["request_timeout"]) as session:
            return int(command(session, **own))
    except CliError as error:
        if out.is_json:
            content = {"code": int(error.code), "reason": error.code.name, "message": str(error)}
            out.json("Error", content)
        sys.stderr.write(f"kubectl mig: {harmless(str(error), newlines=True)}\n")
        return error.code
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader went away; Python would complain once more when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK


def names_of(kind: str, options: Mapping[str, Any]) -> list[str]:
    """The names of a kind of object, for completion.

    Args:
        kind: node, pod, claim, class, namespace, or gpu of the node in ``options``.
        options: those of the command line, as far as it is written.

    Raises:
        CliError: the cluster cannot be asked.
    """
    seconds = _COMPLETION_SECONDS
    out = Output(sys.stdout)
    with _connected(options, out, seconds=seconds, login_seconds=seconds) as session:
        if kind == "gpu":
            return [g.name for g in from_mignode(session.api.get(MIG_NODES, options["node"])).gpus]
        resource = _RESOURCES[kind]
        namespace = session.namespace if resource.namespaced else ""
        found = session.api.list(resource, namespace=namespace).items
        return [obj["metadata"]["name"] for obj in found]


@contextmanager
def _connected(
    options: Mapping[str, Any], out: Output, *, seconds: float, login_seconds: float | None = None
) -> Iterator[Session]:
    """A session with the cluster that the options name; errors are raised as CliError."""
    try:
        access = load_access(options["kubeconfig"], context=options["context"])
        connection = Connection(access, login_seconds=login_seconds)
    except errors.KubeConfigError as error:
        raise CliError(Exit.UNREACHABLE, str(error)) from error
    http = HarmlessClient(connection, user_agent="kubectl-mig", timeout_seconds=seconds)
    session = Session(
        api=KubeApi(http),
        out=out,
        namespace=options.get("namespace") or access.namespace,
        now=lambda: datetime.now(UTC),
        driver=options["driver_name"],
    )
    try:
        yield session
    except errors.ForbiddenError as error:
        raise CliError(Exit.FORBIDDEN, f"not allowed: {error}") from error
    except errors.ObjectNotFoundError as error:
        raise CliError(Exit.NOT_FOUND, str(error)) from error
    except errors.UnavailableError as error:
        message = f"no answer from {access.server} ({access.source}): {error}"
        raise CliError(Exit.UNREACHABLE, message) from error
    except errors.KubeError as error:
        raise CliError(Exit.FINDING, f"the API server refused: {error}") from error
    finally:
        session.api.close()


def missing_module() -> str:
    """The first module that selectors need and that is not installed; empty when all are."""
    return next((name for name in _OF_CEL if find_spec(name) is None), "")


@contextmanager
def evaluator() -> Iterator[Evaluator]:
    """Evaluator of selectors, in a process of its own: a manifest may hold any CEL.

    Raises CliError where selectors cannot be evaluated.
    """
    if module := missing_module():
        needs = f"selectors have to be evaluated, which needs {module}"
        raise CliError(Exit.USAGE, f"{needs}: pip install 'dra-driver-nvidia-mig[cli]'")
    sandbox = Sandbox()
    try:
        yield sandbox
    except SandboxError as error:
        raise CliError(Exit.FINDING, f"{error}; try again") from error
    finally:
        sandbox.close()
