"""``python -m kubeletplugin check``: its command line.

Roots and names come from the program's own options, which stand before ``check``; those that are
not given are taken from the plugin that runs in the same container, if one does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import BinaryIO

import click
from msgspec.structs import replace

from kubeletplugin.check.errors import CheckError, RefusedError
from kubeletplugin.check.looking.host import libcuda
from kubeletplugin.check.looking.reading import attached, read
from kubeletplugin.check.report import encode
from kubeletplugin.check.running import completed
from kubeletplugin.check.screen import draw
from kubeletplugin.check.trying.creating import clean_up, create
from kubeletplugin.check.trying.realtools import RealTools
from kubeletplugin.check.trying.reset import await_reset
from kubeletplugin.check.trying.stopwatch import Stopwatch
from kubeletplugin.errors import PluginError
from kubeletplugin.host.driversearch import DriverSearch
from kubeletplugin.host.roots import Roots
from kubeletplugin.nvml.session.session import Session

_STANDARD_OUTPUT = "<stdout>"
_ROOTS = ("host_root", "driver_root", "cdi_root", "kubelet_root", "state_dir", "driver_name")


@click.command(context_settings={"max_content_width": 100})
@click.option(
    "--json",
    "json_file",
    type=click.File("wb", lazy=False),
    metavar="FILE",
    help="Write the whole report there, to attach it to a bug report; it holds no secrets. With - "
    "it goes to the standard output, and the screen to the standard error.",
)
@click.option(
    "--create",
    "gpu_name",
    metavar="GPU",
    help="Make and remove slices on this idle GPU in MIG mode (index, UUID or gpu-<n>), to settle "
    "what no source tells. Asks first.",
)
@click.option("--yes", is_flag=True, help="Answer the question of --create with yes.")
@click.option(
    "--clean-up",
    "cleans_up",
    is_flag=True,
    help="Remove the slice that a --create which was killed has left, and do nothing else.",
)
@click.option(
    "--await-reset",
    "lost_gpu",
    type=int,
    metavar="INDEX",
    help="Of a GPU that is lost: wait until you have reset it, and tell whether it is back in the "
    "same NVML session.",
)
@click.pass_context
def check(  # noqa: PLR0913 - the flags
    context: click.Context,
    *,
    json_file: BinaryIO | None,
    gpu_name: str | None,
    yes: bool,
    cleans_up: bool,
    lost_gpu: int | None,
) -> None:
    """Look at this node: what is there for slices, what is missing, and the remedy.

    Only reads, unless --create or --clean-up is given. Ends with 0 if slices can be made here and
    with 1 if not.
    """
    given = completed(context)
    roots = Roots.of(**{name: given[name] for name in _ROOTS})
    search = DriverSearch(roots, directories=given["library_directories"], hook=given["cdi_hook"])
    stopwatch = Stopwatch()
    tools = context.obj or RealTools(roots, libcuda(roots, search))
    session = Session(seconds=given["nvml_timeout"], on_call=stopwatch)
    try:
        if cleans_up:
            click.echo(clean_up(session, roots, tools))
            return
        report = read(
            session,
            roots,
            search=search,
            driver=given["driver_name"],
            kubeconfig=given["kubeconfig"],
            taken=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            node=given["node_name"] or "",
        )
        report = replace(report, beliefs=(*report.beliefs, *attached(report.gpus, tools)))
        if lost_gpu is not None:
            answer = await_reset(session, lost_gpu, ask=_asker(yes=yes))
            report = replace(report, beliefs=(*report.beliefs, answer))
        if gpu_name is not None:
            report = create(
                report,
                gpu_name,
                session,
                roots=roots,
                tools=tools,
                ask=_asker(yes=yes),
                say=lambda text: click.echo(text, err=True),
            )
    except (CheckError, PluginError) as error:
        raise click.ClickException(str(error)) from error
    finally:
        session.close()
    report = replace(report, times=stopwatch.times())
    taken = False
    if json_file is not None:
        json_file.write(encode(report) + b"\n")
        taken = json_file.name == _STANDARD_OUTPUT
    click.echo(draw(report), nl=False, err=taken)
    context.exit(0 if report.works else 1)


def _asker(*, yes: bool) -> Callable[[str], bool]:
    """Puts a question to the person at the terminal; without one, only --yes answers."""

    def ask(question: str) -> bool:
        if yes:
            return True
        if not sys.stdin.isatty():
            raise RefusedError(f"{question}? There is no terminal to ask; answer it with --yes")
        return click.confirm(question)

    return ask
