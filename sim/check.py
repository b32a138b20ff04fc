"""`python -m sim check`: the unmodified check of a node, over simulated hardware."""

from pathlib import Path

import click

from sim.nvml import install
from sim.nvml.state import Store


def check_arguments(hardware: Path, arguments: list[str]) -> list[str]:
    """The program's arguments: all that a check looks at is the simulated machine's."""
    host = Path(Store(hardware).read().host_root)
    return [
        *("--host-root", str(host), "--driver-root", str(host)),
        *("--kubelet-root", str(host / "var/lib/kubelet")),
        *("--cdi-root", str(host / "var/run/cdi"), "check", *arguments),
    ]


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--hardware",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of a machine made by `sim nvml init`.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(hardware: Path, arguments: tuple[str, ...]) -> None:
    """Check the machine in the hardware directory, with ARGUMENTS of `kubeletplugin check`."""
    install(hardware)
    # Not before pynvml has its library.
    from kubeletplugin.__main__ import main as program  # noqa: PLC0415

    program(check_arguments(hardware, list(arguments)), prog_name="python -m kubeletplugin")
