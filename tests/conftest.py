"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# How long an example takes, or is made, says something about the machine, not about the code.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")
