"""Edits that a container gets from the host: driver libraries, device nodes, hooks."""
