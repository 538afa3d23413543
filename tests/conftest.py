"""Settings for all tests."""

from hypothesis import settings

# The same examples every time, and no time limit on a machine that others use too.
settings.register_profile("offbeat", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("offbeat")
