"""Index of members by key: the same as a table of sets, whatever is added and taken away."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dra.common.cache import Index

CHANGES = st.tuples(st.booleans(), st.sampled_from("ab"), st.integers(0, 3))


@given(st.lists(CHANGES, max_size=12))
def test_it_holds_what_a_table_of_sets_would_hold(changes: list[tuple[bool, str, int]]) -> None:
    index: Index[str, int] = Index()
    table: dict[str, set[int]] = {"a": set(), "b": set()}
    for added, key, member in changes:
        (index.add if added else index.discard)(key, member)
        (table[key].add if added else table[key].discard)(member)
        assert {key: sorted(index.of(key)) for key in table} == {
            key: sorted(members) for key, members in table.items()
        }
        held = {key: members for key, members in table.items() if members}
        assert {key: set(members) for key, members in index.items()} == held
        assert len(index) == len(held)
        alone = [key for key, members in held.items() if len(members) == 1]
        assert not any(isinstance(index.of(key), set) for key in alone), "a set for one member"
