"""For all tests."""

from hypothesis import settings

# Half of Hypothesis' own number of examples, and no deadline for each: the whole suite has to run
# in minutes, on two cores that may be busy.
settings.register_profile("suite", max_examples=50, deadline=None)
settings.load_profile("suite")
