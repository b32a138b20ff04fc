"""What holds for all tests."""

import signal

from hypothesis import HealthCheck, settings

# How long an example takes, or is made, says something about the machine, not about the code.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

# In the background of a shell without job control SIGINT is ignored, by all that is started too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
