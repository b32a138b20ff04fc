"""The transaction that makes a claim's slices, and its rollback."""
