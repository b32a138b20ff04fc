"""``kubectl-mig``: reads the command line, connects, runs one command, returns its exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TextIO

from cli.arguments import parser
from cli.exits import CliError, Exit
from cli.output import Output

_OFFLINE = frozenset({"lint"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is one of ``cli.exits``."""
    try:
        arguments = parser().parse_args(argv)
    except SystemExit as ended:
        return int(ended.code or 0)
    out = Output(sys.stdout, form=arguments.output, color=not arguments.no_color)
    try:
        return _run(arguments, out)
    except CliError as error:
        return _fail(out, error.code, str(error))
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader went away; Python would complain once more when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK


def _run(arguments: argparse.Namespace, out: Output) -> int:
    command = importlib.import_module(f"cli.commands.{arguments.command}")
    if arguments.command in _OFFLINE:
        return int(command.run(out, arguments))
    from cli.connecting import DirectConnection  # noqa: PLC0415 - not for --help and offline work
    from cli.kubeconfig import load_access  # noqa: PLC0415
    from cli.session import Session  # noqa: PLC0415
    from dra.kube import errors  # noqa: PLC0415
    from dra.kube.http import HttpClient  # noqa: PLC0415
    from dra.kube.transport import KubeApi  # noqa: PLC0415

    access = load_access(arguments.kubeconfig, context=arguments.context)
    connection = DirectConnection(access)
    api = KubeApi(
        HttpClient(connection, user_agent="kubectl-mig", timeout_seconds=arguments.request_timeout)
    )
    session = Session(
        api=api,
        out=out,
        namespace=getattr(arguments, "namespace", None) or access.namespace,
        now=lambda: datetime.now(UTC),
        pause=time.sleep,
        driver=arguments.driver_name,
    )
    try:
        return int(command.run(session, arguments))
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
        api.close()


def _fail(out: Output, code: Exit, message: str) -> int:
    if out.is_json:
        out.json("Error", {"code": int(code), "reason": code.name, "message": message})
    stream: TextIO = sys.stderr
    stream.write(f"kubectl mig: {message}\n")
    return code
