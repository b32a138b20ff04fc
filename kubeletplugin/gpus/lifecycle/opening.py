"""Opening and closing of NVML for some GPUs of the node and not for others."""

from __future__ import annotations

from kubeletplugin.gpus.hardware import Hardware


def close_let_go(hardware: Hardware, seconds: float) -> bool:
    """Have nothing open of the GPUs that are let go of; if those are all, NVML is closed.

    False, and all is as it was, if calls that run have not come back within ``seconds``.

    Raises:
        DriverUnavailableError: it could not be opened again for the others.
    """
    session, units = hardware.session, hardware.units()
    before, session.let_go = session.let_go, frozenset(u.uuid for u in units if u.known.let_go)
    if len(session.let_go) == len(units):
        done = session.close(seconds)
        if not done:
            session.let_go = before
            session.open()
        return done
    if session.is_open and not session.reopen(seconds):
        session.let_go = before
        return False
    return True


def open_held(hardware: Hardware, seconds: float) -> None:
    """Open NVML anew for all GPUs that are not let go of, and look for GPUs.

    Raises:
        NvmlError: the driver cannot be asked.
        HostError: names cannot be kept.
    """
    session = hardware.session
    session.let_go = frozenset(u.uuid for u in hardware.units() if u.known.let_go)
    if session.is_open:
        session.reopen(seconds)  # a GPU that was reset may not answer otherwise
    else:
        hardware.open()
    hardware.discover()
