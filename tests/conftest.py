"""Settings for all tests."""

import torch
from hypothesis import settings

# The same examples every time, and no time limit on a machine that others use too.
settings.register_profile("offbeat", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("offbeat")

# Models here are tiny: threads would only wait for each other, all the more when several workers run tests.
torch.set_num_threads(1)
