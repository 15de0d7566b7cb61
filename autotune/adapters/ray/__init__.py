"""A study's trials on a Ray cluster: the only room that imports Ray.

slots       what one trial is given: cores of its own, a GPU or a slice of one
cluster     connecting, the nodes, what they have
relay       work on a node whose calls are answered by the driver
errand      such work, in an actor of its own
trials      the search's trials as Ray Tune's: the bridge between `TrialSource` and a `Searcher`
"""

import os

# Ray reports how it is used, and Tune adds files and words of its own, unless told not to before
# they are loaded.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_THRESHOLD_S": "1000000",
    "RAY_AIR_NEW_OUTPUT": "0",
    # A device that is taken away with notice is lost like any other.
    "RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE": "1",
}
for _name, _value in _QUIET.items():
    os.environ.setdefault(_name, _value)
