"""The node program over simulated hardware, unmodified: the plugin, and the check of a node."""

import os
from functools import partial
from pathlib import Path

import click

from sim.nvml import install
from sim.nvml.gpus.clients import clients
from sim.nvml.state import Store

Options = dict[str, Path | float | None]
_DIRECTORY = click.Path(path_type=Path, file_okay=False)
_hardware = click.option(
    "--hardware",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of a machine made by `sim nvml init`.",
)


def plugin_arguments(hardware: Path, arguments: list[str]) -> list[str]:
    """The plugin's arguments, with the machine's host root unless the caller names one."""
    if any(a == "--host-root" or a.startswith("--host-root=") for a in arguments):
        return arguments
    return [*arguments, "--host-root", Store(hardware).read().host_root]


@click.command(context_settings={"ignore_unknown_options": True})
@_hardware
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(hardware: Path, arguments: tuple[str, ...]) -> None:
    """Run the kubelet plugin, or its check, with ARGUMENTS over the machine in the directory."""
    _run(hardware, plugin_arguments(hardware, list(arguments)))


def check_arguments(hardware: Path, program: Options) -> list[str]:
    """The program's options: all that a check looks at is the simulated machine's, unless named."""
    host = Path(Store(hardware).read().host_root)
    places: Options = {
        "host_root": host,
        "driver_root": host,
        "kubelet_root": host / "var/lib/kubelet",
        "cdi_root": host / "var/run/cdi",
    }
    places |= {name: value for name, value in program.items() if value is not None}
    return [f"--{name.replace('_', '-')}={path}" for name, path in places.items()]


def has_released(hardware: Path) -> bool:
    """True if no other process has the machine's driver open."""
    return all(client.pid == os.getpid() for client in clients(hardware))


@click.command("check", context_settings={"ignore_unknown_options": True})
@_hardware
@click.option("--kubelet-root", type=_DIRECTORY, help="Default: below the machine's host root.")
@click.option("--cdi-root", type=_DIRECTORY, help="Default: below the machine's host root.")
@click.option("--state-dir", type=_DIRECTORY, help="Default: below the kubelet root.")
@click.option("--nvml-timeout", type=float, help="Seconds, as of the kubelet plugin.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def check(hardware: Path, arguments: tuple[str, ...], **program: Path | float | None) -> None:
    """Check the machine in the hardware directory, with ARGUMENTS of `kubeletplugin check`."""
    given = [*check_arguments(hardware, program), "check", *arguments]
    _run(hardware, given, obj=partial(has_released, hardware))


def _run(hardware: Path, arguments: list[str], **context: object) -> None:
    install(hardware)
    # Not before pynvml has its library.
    from kubeletplugin.__main__ import main as program  # noqa: PLC0415

    program(arguments, prog_name="python -m kubeletplugin", **context)
