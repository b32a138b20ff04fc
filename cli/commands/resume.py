"""``kubectl mig resume``: place slices on drained GPUs again."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from cli.shell.exits import CliError, Exit
from cli.shell.session import Session
from cli.site.draining import check_gpus, drained, remaining, write_drain
from cli.site.reading import site


def run(session: Session, arguments: argparse.Namespace) -> int:
    """Take GPUs, or the whole node, back into service."""
    node = site(session).node(arguments.node)
    if node is None:
        raise CliError(Exit.NOT_FOUND, f"there is no MigNode {arguments.node!r}")
    before = drained(node.inventory)
    check_gpus(node.inventory, arguments.gpu)
    left = remaining(node.inventory, tuple(arguments.gpu))
    if left != node.inventory.drain:
        write_drain(session, arguments.node, left)
    still = [g for g in drained(node.inventory) if left is not None and left.covers(g)]
    if session.out.is_json:
        session.out.json("Drain", {"node": node.name, "drained": still})
    else:
        back = [gpu for gpu in before if gpu not in still]
        text = f"back in service: {', '.join(back)}" if back else _nothing(arguments.gpu, before)
        rest = f"; still drained: {', '.join(still)}" if still else ""
        session.out.line(f"{session.out.bold(node.name)}  {text}{rest}")
    return Exit.OK


def _nothing(asked: Sequence[str], before: Sequence[str]) -> str:
    """Reason why nothing came back."""
    if asked and before:
        return f"{', '.join(asked)} was not drained"
    return "nothing to do: no GPU of it was drained"
