"""`python -m sim plugin`: the unmodified kubelet plugin over simulated hardware."""

from pathlib import Path

import click

from sim.nvml import install
from sim.nvml.state import Store


def plugin_arguments(hardware: Path, arguments: list[str]) -> list[str]:
    """The plugin's arguments, with the machine's host root unless the caller names one."""
    if any(a == "--host-root" or a.startswith("--host-root=") for a in arguments):
        return arguments
    return [*arguments, "--host-root", Store(hardware).read().host_root]


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--hardware",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of a machine made by `sim nvml init`.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(hardware: Path, arguments: tuple[str, ...]) -> None:
    """Run the kubelet plugin, or its check, with ARGUMENTS over the machine in the directory."""
    install(hardware)
    # Not before pynvml has its library.
    from kubeletplugin.__main__ import main as plugin  # noqa: PLC0415

    plugin(plugin_arguments(hardware, list(arguments)), prog_name="python -m kubeletplugin")
