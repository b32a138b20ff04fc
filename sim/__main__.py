"""`python -m sim`: a cluster in a box. Each subcommand is loaded when it is asked for."""

import importlib

import click

COMMANDS = {
    "nvml": "sim.nvml.cli:nvml",
    "plugin": "sim.plugin:plugin",
}
"""Subcommand to `module:attribute` of its click command."""


class LazyGroup(click.Group):
    """A group that imports a subcommand's module only when that subcommand is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Names of all subcommands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return a subcommand."""
        where = COMMANDS.get(cmd_name)
        if where is None:
            return None
        module, _, attribute = where.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.group(cls=LazyGroup)
def main() -> None:
    """Simulated hardware and cluster, for machines without them."""


if __name__ == "__main__":
    main(prog_name="python -m sim")
