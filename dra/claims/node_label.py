"""Label of a claim that names the node which it is allocated to, by which nodes watch their claims.

No field of an allocation can be selected by in a watch, and no node can mirror all claims of a
cluster. The label says only which claims a node looks at: any user may set one, and what counts is
the allocation.
"""

from __future__ import annotations

import hashlib

_MOST_CHARACTERS = 63
"""Upper bound on a label's value; a node's name has up to 253."""


def node_label(driver: str) -> str:
    """Key of the label."""
    return f"{driver}/node"


def label_of(node: str) -> str:
    """Value of the label for a node: its name, or a digest of one that is too long."""
    if len(node) <= _MOST_CHARACTERS:
        return node
    return hashlib.sha256(node.encode()).hexdigest()[:_MOST_CHARACTERS]
