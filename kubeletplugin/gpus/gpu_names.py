"""Names of GPUs, ``gpu-<n>``: given when the plugin first sees a GPU, and kept on disk.

The number is the minor number of that moment. Minors shift when cards are swapped or enumerated in
another order; the names that allocations refer to must not.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path

from cdi.files import write_durably
from dra.gpu.names import parse_device
from kubeletplugin.errors import HostError
from kubeletplugin.journal.entries import Entry

_log = logging.getLogger(__name__)


class GpuNames:
    """UUID to number, in a JSON file. Used by one thread at a time.

    ``hints`` are pairs known from elsewhere (the journal's devices); they count where the file is
    lost or damaged, unless they give a name to a second GPU.
    """

    def __init__(self, path: Path, *, hints: Mapping[str, int] | None = None) -> None:
        self._path = path
        self._numbers = _load(path)
        for uuid, number in (hints or {}).items():
            if uuid not in self._numbers and number not in self._numbers.values():
                self._numbers[uuid] = number

    def assign(self, gpus: Iterable[tuple[str, int]]) -> dict[str, int]:
        """Numbers for GPUs given as (UUID, minor number now); new pairs are on disk on return.

        A known GPU keeps its number. A new one gets its minor number, or the lowest that is neither
        taken nor another GPU's minor number.

        Raises:
            HostError: the file cannot be written; nothing is assigned.
        """
        present = list(gpus)
        numbers = dict(self._numbers)
        reserved = {minor for _, minor in present}
        for uuid, minor in present:
            if uuid in numbers:
                continue
            taken = set(numbers.values())
            if minor not in taken:
                numbers[uuid] = minor
            else:
                numbers[uuid] = next(n for n in count() if n not in taken | reserved)
                _log.warning(
                    "the name gpu-%d is taken; GPU %s is gpu-%d", minor, uuid, numbers[uuid]
                )
        if numbers != self._numbers or not self._path.exists():
            self._save(numbers)
        self._numbers = numbers
        return {uuid: numbers[uuid] for uuid, _ in present}

    def _save(self, numbers: Mapping[str, int]) -> None:
        data = json.dumps({"version": 1, "gpus": numbers}, indent=1).encode()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(self._path, data, mode=0o600)
        except OSError as error:
            raise HostError(
                f"cannot write the GPU names {self._path}: {error.strerror or error}"
            ) from error


def _load(path: Path) -> dict[str, int]:
    try:
        pairs = json.loads(path.read_bytes())["gpus"]
        numbers = {str(uuid): int(number) for uuid, number in pairs.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _log.error("GPU names %s are not usable (%s); assigning anew", path, error)
        return {}
    if len(set(numbers.values())) != len(numbers):
        _log.error("GPU names %s give one name to two GPUs; assigning anew", path)
        return {}
    return numbers


def used_names(entries: Iterable[Entry]) -> dict[str, int]:
    """GPU numbers that prepared devices already use."""
    return {e.gpu: parse_device(e.device).minor for e in entries if not e.quarantined}
