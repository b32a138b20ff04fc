"""Kinds and their life cycles: defaults, what each endpoint may write, selectable fields."""
