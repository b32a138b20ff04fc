"""``kubectl-mig``: reads the command line and runs one command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cli.shell.arguments import parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is one of ``cli.shell.exits``."""
    try:
        arguments = parser().parse_args(_command_first([*(sys.argv[1:] if argv is None else argv)]))
    except SystemExit as ended:
        return int(ended.code or 0)
    # Help and mistakes in the command line are answered without loading the rest.
    from cli.shell.running import run  # noqa: PLC0415

    return run(arguments)


_WITH_VALUE = frozenset(
    (
        *("--kubeconfig", "--context", "--driver-name", "--request-timeout"),
        *("-o", "--output", "-n", "--namespace"),
    )
)


def _command_first(words: list[str]) -> list[str]:
    """The command line with the options behind the command that stand before it, as for kubectl."""
    end = 0
    while end < len(words) and words[end].startswith("-"):
        if words[end] in ("-h", "--help", "--version"):
            return words
        end += 2 if words[end] in _WITH_VALUE else 1
    return [*words[end : end + 1], *words[:end], *words[end + 1 :]]
