"""Watch for a GPU's events, in a thread of its own: a hanging GPU delays no other."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dra.kube.loop import Loop
from dra.kube.timing import Backoff, Clock
from kubeletplugin.nvml.errors import GpuLostError, GpuReleasedError, NotSupportedError, NvmlError
from kubeletplugin.nvml.events import GpuEvents, RecoveryChanged, Xid
from kubeletplugin.nvml.session import Session

_log = logging.getLogger(__name__)
_WAIT_SECONDS = 2.0
"""One wait; after it the watch may end. Short ones cost a node at rest most of its CPU."""
_AGAIN_SECONDS = 5.0


class XidWatch:
    """Watch of one GPU; what it hears, it tells from its thread by the functions ``on_``."""

    def __init__(  # noqa: PLR0913 - what it hears and whom it tells
        self,
        session: Session,
        gpu: str,
        *,
        on_xid: Callable[[Xid], None],
        on_instances: Callable[[], None],
        on_recovery: Callable[[], None],
        on_lost: Callable[[], None],
        on_unsupported: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._session = session
        self._gpu = gpu
        self._on_xid = on_xid
        self._on_instances = on_instances
        self._on_recovery = on_recovery
        self._on_lost = on_lost
        self._on_unsupported = on_unsupported
        self._said = ""
        self._listens = False
        again = Backoff(first=_AGAIN_SECONDS)
        self._loop = Loop(f"XIDs {gpu}", self._turn, backoff=again, clock=clock)
        self._loop.start()

    @property
    def listens(self) -> bool:
        """True if it has registered for events, so that it hears of what happens from now on."""
        return self._listens

    def stop(self) -> None:
        """End soon; does not wait."""
        self._loop.stop()

    def join(self, seconds: float) -> None:
        """Wait for the end; a call that hangs is left behind."""
        self._loop.join(seconds)

    def _turn(self) -> float:
        try:
            if self._session.is_open:
                self._listen()
                return _WAIT_SECONDS
        except NotSupportedError as error:
            self._on_unsupported(str(error))
            self._loop.stop()
        except GpuReleasedError:
            _log.debug("XIDs of GPU %s are not listened to: it is released", self._gpu)
        except GpuLostError as error:
            self._say(error)
            self._on_lost()
        except NvmlError as error:
            self._say(error)
        return _AGAIN_SECONDS

    def _listen(self) -> None:
        events = GpuEvents(self._session, self._gpu)
        # Waiting for nothing must not look like a call that hangs.
        wait = min(_WAIT_SECONDS, self._session.seconds / 2)
        self._said = ""
        self._listens = True
        try:
            while not (self._loop.is_stopping() or events.stale):
                event = events.next(wait, self._loop.is_stopping)
                if isinstance(event, Xid):
                    self._on_xid(event)
                elif isinstance(event, RecoveryChanged):
                    self._on_recovery()
                elif event is not None:
                    self._on_instances()
        finally:
            self._listens = False
            events.close()

    def _say(self, error: NvmlError) -> None:
        """Log an error unless it is the one that was logged last."""
        kind = f"{type(error).__name__} {error.operation} {error.code}"
        if kind != self._said:
            _log.warning("XIDs of GPU %s are not heard meanwhile: %s", self._gpu, error)
            self._said = kind
