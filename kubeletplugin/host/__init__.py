"""Parts of the host that containers get: driver libraries, device nodes and hooks."""
