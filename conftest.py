"""What holds for every test: Hypothesis draws the same examples each time, so a run tells of the code alone.

``HYPOTHESIS_PROFILE=search`` looks for new ones (``make soak`` does).
"""

import os

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.register_profile("search", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
