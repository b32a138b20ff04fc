"""One run of a command: connect, do it, and turn what went wrong into an exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

from cli.connecting import DirectConnection
from cli.exits import CliError, Exit
from cli.kubeconfig import load_access
from cli.output import Output
from cli.session import Session
from dra.kube import errors
from dra.kube.http import HttpClient
from dra.kube.transport import KubeApi

_OFFLINE = frozenset({"lint"})


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
    access = load_access(arguments.kubeconfig, context=arguments.context)
    http = HttpClient(
        DirectConnection(access),
        user_agent="kubectl-mig",
        timeout_seconds=arguments.request_timeout,
    )
    session = Session(
        api=KubeApi(http),
        out=out,
        namespace=getattr(arguments, "namespace", None) or access.namespace,
        now=lambda: datetime.now(UTC),
        pause=time.sleep,
        driver=arguments.driver_name,
    )
    try:
        return command(session, arguments)
    except errors.ForbiddenError as error:
        raise CliError(Exit.FORBIDDEN, f"not allowed: {error}") from error
    except errors.NotFoundError as error:
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
    sys.stderr.write(f"kubectl mig: {message}\n")
    return code
