"""``python -m kubeletplugin check``: its command line.

Roots and names come from the program's own options, which stand before ``check``; those that are
not given are taken from the plugin that runs in the same container, if one does.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from kubeletplugin.check.reading import read
from kubeletplugin.check.report import encode
from kubeletplugin.check.running import completed
from kubeletplugin.check.screen import draw
from kubeletplugin.check.stopwatch import Stopwatch
from kubeletplugin.nvml.session import Session
from kubeletplugin.roots import Roots

_ROOTS = ("host_root", "driver_root", "cdi_root", "kubelet_root", "state_dir", "driver_name")


@click.command(context_settings={"max_content_width": 100})
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the whole report there, to attach it to a bug report; it holds no secrets.",
)
@click.pass_context
def check(context: click.Context, json_file: Path | None) -> None:
    """Look at this node: what is there for slices, what is missing, and the remedy.

    Reads only. Ends with 0 if slices can be made here and with 1 if not.
    """
    given = completed(context)
    stopwatch = Stopwatch()
    session = Session(seconds=given["nvml_timeout"], on_call=stopwatch)
    report = read(
        session,
        Roots.of(**{name: given[name] for name in _ROOTS}),
        driver=given["driver_name"],
        kubeconfig=given["kubeconfig"],
        taken=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        node=given["node_name"] or "",
    )
    session.close()
    report = msgspec.structs.replace(report, times=stopwatch.times())
    if json_file is not None:
        json_file.write_bytes(encode(report))
    click.echo(draw(report), nl=False)
    context.exit(0 if report.works else 1)
