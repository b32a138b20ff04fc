"""``python -m sim``: every part of the cluster in a box, as subcommands loaded when asked for."""

from __future__ import annotations

import importlib

import click

COMMANDS: dict[str, str] = {
    "apiserver": "sim.apiserver.cli:main",
    "check": "sim.plugin:check",
    "control-plane": "sim.cluster.cluster:main",
    "demo": "sim.cluster.cli:demo",
    "kcm": "sim.kcm:main",
    "kubelet": "sim.kubelet.kubelet:main",
    "nvml": "sim.nvml.cli:main",
    "plugin": "sim.plugin:main",
    "up": "sim.cluster.cli:up",
}
"""Subcommand to ``module:function``."""


class LazyGroup(click.Group):
    """A group that imports a subcommand only to run it, so that each process stays small."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The names, sorted."""
        return sorted(COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        cmd_name: str,
    ) -> click.Command | None:
        """Imports the subcommand; None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, function = COMMANDS[cmd_name].partition(":")
        command = getattr(importlib.import_module(module), function)
        if not isinstance(command, click.Command):
            raise TypeError(f"{COMMANDS[cmd_name]} is no click command")
        return command


@click.command(cls=LazyGroup)
def main() -> None:
    """Run a DRA cluster without Kubernetes and without a GPU."""


if __name__ == "__main__":
    main(prog_name="python -m sim")
