"""Making journal, hardware and CDI specs agree: at start, and in the background.

What kubelet was told is kept; what it was not told is undone, as kubelet asks again. Nothing is
removed because something could not be asked: a claim is gone only when the API server says so.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from dra.inventory import ClaimRef
from dra.kube.errors import KubeError, NotFoundError
from dra.kube.resources import RESOURCE_CLAIMS
from dra.kube.transport import KubeApi
from kubeletplugin.errors import PluginError
from kubeletplugin.hardware import Hardware
from kubeletplugin.journal import Entry, Journal, State
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.slices import Slices
from kubeletplugin.specs import Specs
from kubeletplugin.undo import Undo

_log = logging.getLogger(__name__)


class Recovery:
    """Runs before any claim is served, so nothing else works on the journal meanwhile."""

    def __init__(
        self, hardware: Hardware, journal: Journal, slices: Slices, specs: Specs, undo: Undo
    ) -> None:
        self._hardware = hardware
        self._journal = journal
        self._slices = slices
        self._specs = specs
        self._undo = undo

    def run(self) -> None:
        """Check every claim of the journal, then remove specs that belong to none. Never raises.

        At rest this changes nothing: no instance, no file.
        """
        claims: dict[str, list[Entry]] = {}
        for entry in self._journal.entries():
            claims.setdefault(entry.claim.uid, []).append(entry)
        for uid, entries in claims.items():
            self._claim(uid, entries)
        try:
            removed = self._specs.sweep({e.claim.uid for e in self._journal.entries()})
        except PluginError as error:
            _log.error("%s", error)
        else:
            if removed:
                _log.info("removed %d CDI specs without a claim", removed)

    def _claim(self, uid: str, entries: list[Entry]) -> None:
        ref = entries[0].claim
        if any(e.state is not State.PREPARED for e in entries):
            _log.info("claim %s (%s) was left half done and is undone", ref, uid)
            self._undo.unfinished(uid)
            entries = [e for e in entries if e.state is State.PREPARED]
        if entries and self._whole(entries):
            try:
                self._specs.write(entries)
            except PluginError as error:
                _log.error("claim %s (%s): %s", ref, uid, error)

    def _whole(self, entries: Iterable[Entry]) -> bool:
        """Whether all slices of a claim are there; those that are not come back with Prepare."""
        whole = True
        for entry in entries:
            try:
                there = entry.placement is None or self._slices.present(entry)
            except NvmlError as error:
                _log.error("%s of claim %s cannot be checked: %s", entry.device, entry.claim, error)
                there = False
            else:
                if not there:
                    _log.warning(
                        "%s of claim %s is gone from the hardware (reboot or GPU reset); "
                        "it is made again when the pod starts again",
                        entry.device,
                        entry.claim,
                    )
            whole = whole and there
        return whole


def is_gone(api: KubeApi, ref: ClaimRef) -> bool:
    """Whether the API server says that this claim does not exist: 404, or the name has another UID.

    No answer, or a refusal, is not a "no".
    """
    try:
        found = api.get(RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)
    except NotFoundError as error:
        # A missing resource type (an API server still starting) is 404 too, without a name.
        return error.details.get("name") == ref.name
    except KubeError as error:
        _log.debug("claim %s: %s", ref, error)
        return False
    return str(found["metadata"]["uid"]) != ref.uid
