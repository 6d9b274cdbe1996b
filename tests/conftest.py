"""What holds for all tests: hypothesis tries the same examples each time, however long they take.

`--hypothesis-profile=explore` looks at others, to find what is wrong where nobody looked yet.
"""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "explore", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")
