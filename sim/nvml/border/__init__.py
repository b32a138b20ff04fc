"""Border to pynvml: the library as C functions, and the session of one process with it."""
