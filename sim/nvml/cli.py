"""`python -m sim nvml`: make, show and disturb a simulated machine."""

import json
from pathlib import Path

import click

from sim.nvml.cabi import RefusedError, Return
from sim.nvml.gpus.hardware import DRIVER_VERSION
from sim.nvml.library import read_latencies
from sim.nvml.machine import GpuSpec, Machine
from sim.nvml.products import ContentError, product_names

_state = click.option(
    "--state",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the machine.",
)
_report = click.Path(exists=True, dir_okay=False, path_type=Path)
_TIMES = "Let calls take the times of a report of `kubeletplugin check`"


@click.group()
def main() -> None:
    """Simulated GPUs, kept in a directory that several processes share."""


def _spec(text: str, *, mig: bool) -> GpuSpec:
    path = Path(text)
    return GpuSpec(path if path.suffix == ".json" else text, mig=mig)


@main.command()
@_state
@click.option("--gpu", "gpus", multiple=True, required=True, help="Product name or JSON file.")
@click.option("--host-root", type=click.Path(path_type=Path), help="Default: <state>/host.")
@click.option("--driver-version", default=DRIVER_VERSION, show_default=True)
@click.option("--mig/--no-mig", default=True, show_default=True, help="MIG mode of the GPUs.")
@click.option("--latencies", type=_report, metavar="REPORT", help=f"{_TIMES}.")
def init(  # noqa: PLR0913 - the flags
    state: Path,
    gpus: tuple[str, ...],
    host_root: Path | None,
    driver_version: str,
    latencies: Path | None,
    *,
    mig: bool,
) -> None:
    """Make a machine with these GPUs."""
    specs = [_spec(text, mig=mig) for text in gpus]
    try:
        measured = read_latencies(latencies) if latencies else {}
        machine = Machine.create(state, specs, host_root=host_root, driver_version=driver_version)
    except (FileExistsError, LookupError, ContentError) as error:
        raise click.ClickException(str(error)) from error
    machine.configure(latencies=measured)


@main.command()
@_state
@click.argument("report", type=_report)
def latencies(state: Path, report: Path) -> None:
    """Let calls take the times of REPORT, which `kubeletplugin check --json` has written."""
    try:
        Machine(state).configure(latencies=read_latencies(report))
    except LookupError as error:
        raise click.ClickException(str(error)) from error


@main.command()
def products() -> None:
    """List the bundled GPU products."""
    for name in product_names():
        click.echo(name)


@main.command()
@_state
@click.option("--json", "as_json", is_flag=True, help="The whole state as JSON.")
def show(state: Path, *, as_json: bool) -> None:
    """Show the GPUs with their instances."""
    machine = Machine(state)
    if as_json:
        click.echo(json.dumps(machine.snapshot(), indent=2))
        return
    for index, gpu in enumerate(machine.state().gpus):
        product = machine.product(index)
        mode = "on" if gpu.mig else "off"
        lost = ", lost" if gpu.lost else ""
        click.echo(f"{index}: {product.name} {gpu.uuid} minor {gpu.minor}, MIG {mode}{lost}")
        for instance in sorted(gpu.gpu_instances, key=lambda g: g.start):
            profile = product.profile(instance.profile)
            name = profile.name if profile else "?"
            uuids = " ".join(c.uuid for c in instance.compute_instances) or "no compute instance"
            span = f"{instance.start}:{instance.size}"
            click.echo(f"   {span:5} {name:12} GPU instance {instance.id:2}  {uuids}")


@main.command()
@_state
@click.option("--gpu", type=int, default=0, show_default=True, help="Index of the GPU.")
@click.option("--start", type=int, help="First memory slice; the driver chooses without it.")
@click.argument("profile")
def create(state: Path, gpu: int, start: int | None, profile: str) -> None:
    """Create a slice past the plugin, as a foreign client would."""
    try:
        click.echo(Machine(state).create_slice(gpu, profile, start=start).uuid)
    except RefusedError as error:
        raise click.ClickException(Return(error.code).name) from error
    except LookupError as error:
        raise click.ClickException(str(error)) from error
