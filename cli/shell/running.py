"""Run of a command: connection, the work, and an exit code for every error."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

from cli.shell.connecting import DirectConnection, HarmlessClient
from cli.shell.exits import CliError, Exit
from cli.shell.kubeconfig import load_access
from cli.shell.output import Output, harmless
from cli.shell.session import Session
from dra.common.resources import (
    DEVICE_CLASSES,
    MIG_NODES,
    NAMESPACES,
    PODS,
    RESOURCE_CLAIMS,
    Resource,
)
from dra.gpu.mignode import from_mignode
from dra.kube import errors
from dra.kube.client import KubeApi

_OFFLINE = frozenset({"convert", "lint"})
_COMPLETION_SECONDS = 3.0
_RESOURCES: Mapping[str, Resource] = {
    "node": MIG_NODES,
    "pod": PODS,
    "claim": RESOURCE_CLAIMS,
    "device_class": DEVICE_CLASSES,
    "namespace": NAMESPACES,
}


def run(arguments: argparse.Namespace) -> int:
    """Run the command that was asked for; returns the exit code."""
    out = Output(sys.stdout, form=arguments.output, color=not arguments.no_color)
    command = importlib.import_module(f"cli.commands.{arguments.command}")
    try:
        if arguments.command in _OFFLINE:
            return int(command.run(out, arguments))
        return _online(command.run, arguments, out)
    except CliError as error:
        return _fail(out, error.code, str(error))
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader went away; Python would complain once more when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK


def _online(
    command: Callable[[Session, argparse.Namespace], int],
    arguments: argparse.Namespace,
    out: Output,
) -> int:
    with _session(arguments, out, seconds=arguments.request_timeout) as session:
        return command(session, arguments)


def names_of(kind: str, where: argparse.Namespace) -> list[str]:
    """The names of a kind of object, for completion.

    Args:
        kind: node, pod, claim, namespace, or gpu of ``where.node``.
        where: kubeconfig, context, namespace and driver_name.

    Raises:
        CliError: the cluster cannot be asked.
    """
    out, seconds = Output(sys.stdout), _COMPLETION_SECONDS
    with _session(where, out, seconds=seconds, login_seconds=seconds) as session:
        if kind == "gpu":
            return [g.name for g in from_mignode(session.api.get(MIG_NODES, where.node)).gpus]
        resource = _RESOURCES[kind]
        namespace = session.namespace if resource.namespaced else ""
        found = session.api.list(resource, namespace=namespace).items
        return [obj["metadata"]["name"] for obj in found]


@contextmanager
def _session(
    arguments: argparse.Namespace,
    out: Output,
    *,
    seconds: float,
    login_seconds: float | None = None,
) -> Iterator[Session]:
    """A session with the cluster that the arguments name; its errors as CliError."""
    access = load_access(arguments.kubeconfig, context=arguments.context)
    connection = DirectConnection(access, login_seconds=login_seconds)
    http = HarmlessClient(connection, user_agent="kubectl-mig", timeout_seconds=seconds)
    session = Session(
        api=KubeApi(http),
        out=out,
        namespace=getattr(arguments, "namespace", None) or access.namespace,
        now=lambda: datetime.now(UTC),
        pause=time.sleep,
        driver=arguments.driver_name,
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


def _fail(out: Output, code: Exit, message: str) -> int:
    if out.is_json:
        out.json("Error", {"code": int(code), "reason": code.name, "message": message})
    sys.stderr.write(f"kubectl mig: {harmless(message, newlines=True)}\n")
    return code
