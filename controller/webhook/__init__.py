"""Optional program: refuses unreadable configuration, and has claims made for pods' limits."""
