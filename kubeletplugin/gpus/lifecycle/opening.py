"""Opening and closing of NVML for some GPUs of the node and not for others."""

from __future__ import annotations

from kubeletplugin.gpus.hardware import Hardware


def close_released(hardware: Hardware, seconds: float) -> bool:
    """Have nothing open of the GPUs that are released; if those are all, NVML is closed.

    False, and all is as it was, if calls that run have not come back within ``seconds``.

    Raises:
        DriverUnavailableError: it could not be opened again for the others.
    """
    session, units = hardware.session, hardware.units()
    before, session.released = (
        session.released,
        frozenset(u.uuid for u in units if u.known.released),
    )
    if len(session.released) == len(units):
        done = session.close(seconds)
        if not done:
            session.released = before
            session.open()
        return done
    if session.is_open and not session.reopen(seconds):
        session.released = before
        return False
    return True


def open_held(hardware: Hardware, seconds: float) -> None:
    """Open NVML anew for all GPUs that are not released, and look for GPUs.

    Raises:
        NvmlError: the driver cannot be asked.
        HostError: names cannot be kept.
    """
    session = hardware.session
    session.released = frozenset(u.uuid for u in hardware.units() if u.known.released)
    if session.is_open:
        session.reopen(seconds)  # a GPU that was reset may not answer otherwise
    else:
        hardware.open()
    hardware.discover()
