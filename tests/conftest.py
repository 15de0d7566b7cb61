"""For all tests."""

import pytest
from hypothesis import settings

# Half of Hypothesis' own number of examples, and no deadline for each: the whole suite has to run
# in minutes, on two cores that may be busy.
settings.register_profile("suite", max_examples=50, deadline=None)
settings.load_profile("suite")

STUDIES = "studies"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Where tests run side by side, each file stays with one process, and all that run studies
    with the same: one study at a time may measure on a machine."""
    item.add_marker(pytest.mark.xdist_group(_group(item)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Studies come first, being the most."""
    items.sort(key=lambda item: _group(item) != STUDIES)


def _group(item: pytest.Item) -> str:
    return STUDIES if item.get_closest_marker("study") else item.path.stem
