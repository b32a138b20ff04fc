"""``kubectl mig resume``: place slices on drained GPUs again."""

from __future__ import annotations

import argparse

from cli.draining import check_gpus, drained, remaining, write_drain
from cli.exits import CliError, Exit
from cli.reading import site
from cli.session import Session


def run(session: Session, arguments: argparse.Namespace) -> int:
    """Take GPUs, or the whole node, back into service."""
    node = site(session).node(arguments.node)
    if node is None:
        raise CliError(Exit.NOT_FOUND, f"there is no MigNode {arguments.node!r}")
    check_gpus(node.inventory, arguments.gpu)
    left = remaining(node.inventory, tuple(arguments.gpu))
    if left != node.inventory.drain:
        write_drain(session, arguments.node, left)
    still = [g for g in drained(node.inventory) if left is not None and left.covers(g)]
    if session.out.is_json:
        session.out.json("Drain", {"node": node.name, "drained": still})
    else:
        text = f"drained: {', '.join(still)}" if still else "nothing is drained"
        session.out.line(f"{session.out.bold(node.name)}  {text}")
    return Exit.OK
