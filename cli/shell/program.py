"""``kubectl-mig``: reads the command line and runs one command."""

from __future__ import annotations

from collections.abc import Sequence

from cli.shell.arguments import parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is one of ``cli.shell.exits``."""
    try:
        arguments = parser().parse_args(argv)
    except SystemExit as ended:
        return int(ended.code or 0)
    # Help and mistakes in the command line are answered without loading the rest.
    from cli.shell.running import run  # noqa: PLC0415

    return run(arguments)
