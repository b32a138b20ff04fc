"""GPUs of a machine: assembled, cut, held by processes, administered."""
