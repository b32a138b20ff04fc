"""Types that are read from JSON by several threads."""

from typing import TypeVar

import msgspec

T = TypeVar("T", bound=type)


def decodable(kind: T) -> T:
    """Make ``kind`` ready to be read, while the module that has it is imported.

    Msgspec looks through a type, and all that it consists of, when it is read for the first time.
    What it finds it puts where others look before it is whole (``StructInfo_Convert`` in its
    ``_core.c``, up to 0.22), so that a second thread that reads the type meanwhile ends the
    process: SIGSEGV.
    """
    msgspec.json.Decoder(kind)
    return kind
