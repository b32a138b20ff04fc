"""What holds for all tests."""

import os
import signal
import sys
import tempfile

from hypothesis import HealthCheck, settings

from tests.folders import MEMORY

# Without bytecode each of some hundred processes compiles anew what it imports, and each worker
# rewrites the assertions of all tests; images of Python like to switch it off.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# All folders of tests: most of what programs write here is small, synced and removed at once.
if "TMPDIR" not in os.environ:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

# How long an example takes, or is made, says something about the machine, not about the code.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

# In the background of a shell without job control SIGINT is ignored, by all that is started too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
