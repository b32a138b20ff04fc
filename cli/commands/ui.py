"""``kubectl mig ui``: the page of the cluster, for whoever has its address."""

from __future__ import annotations

import gc
import secrets
from contextlib import suppress

from cli.output import CliError, Exit
from cli.page.server import PageServer
from cli.page.source import mirrored
from cli.session import Session


def run(session: Session, *, port: int) -> int:
    """Serve the page to this machine until interrupted; the address has a token in it."""
    gc.enable()  # this command stays
    with mirrored(session) as source:
        try:
            server = PageServer(port, source, secrets.token_urlsafe(24))
        except OSError as error:
            raise CliError(
                Exit.USAGE, f"--port: cannot listen on {port}: {error.strerror}; give another"
            ) from error
        with server:
            session.out.line(server.address)
            session.out.line("open it in a browser; whoever has the address reads as you do")
            session.out.line("Ctrl-C ends it")
            session.out.flush()
            with suppress(KeyboardInterrupt):
                server.serve_forever()
    return Exit.OK
