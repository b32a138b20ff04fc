"""``kubectl mig ui``: the page of the cluster, for whoever has its address."""

from __future__ import annotations

import secrets
from contextlib import suppress

from cli.output import CliError, Exit
from cli.page.mirrors import Reader
from cli.page.server import PageServer
from cli.page.source import ClusterSource, mirrored, only_with
from cli.session import Session


def run(session: Session, *, port: int) -> int:
    """Serve the page to this machine until interrupted; the address has a token in it."""
    token = secrets.token_urlsafe(24)
    with mirrored(session, namespace=session.namespace) as (mirrors, content, evaluator):
        find = only_with(token, Reader(mirrors.covers))
        source = ClusterSource(session, mirrors, content, find_reader=find, evaluator=evaluator)
        try:
            server = PageServer(("127.0.0.1", port), source)
        except OSError as error:
            raise CliError(
                Exit.USAGE, f"--port: cannot listen on {port}: {error.strerror}; give another"
            ) from error
        with server:
            url = f"http://127.0.0.1:{server.server_address[1]}/#token={token}"
            if session.out.is_json:
                session.out.json("Page", {"url": url})
            else:
                session.out.line(url)
                session.out.line("open it in a browser; whoever has the address reads as you do")
                session.out.line("Ctrl-C ends it")
            session.out.flush()
            with suppress(KeyboardInterrupt):
                server.serve_forever()
    return Exit.OK
