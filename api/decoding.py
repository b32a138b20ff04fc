"""Types that are read from JSON by several threads."""

from typing import TypeVar

import msgspec

T = TypeVar("T", bound=type)


def decodable(kind: T) -> T:
    """Have msgspec examine ``kind`` while its module is imported; returns ``kind``.

    Without that, msgspec examines a type and its parts when a value of it is first decoded, and
    stores the result before it is complete (``StructInfo_Convert`` in msgspec's ``_core.c``, up to
    0.22). A second thread that decodes the type at that moment ends the process by SIGSEGV.
    """
    msgspec.json.Decoder(kind)
    return kind
