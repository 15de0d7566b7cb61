"""What an earlier candidate left behind in a server that still says it is live.

Triton 2.51 answers on when an instance of its Python backend has died, each request after two
seconds with an error, and never starts another in its place. One that hangs, in the model or for
want of memory, keeps its process, its memory and the requests before it, also when another
configuration has been loaded since.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import psutil

from autotune.adapters.telemetry.triton_metrics import parse_gauges, read_page
from autotune.core.model_interface import Endpoint

_PENDING = "nv_inference_pending_request_count"
_FAILED = "nv_inference_request_failure"
_BACKEND = 'reason="BACKEND"'
_TWICE_S = 0.3


def dead(pids: Callable[[], Sequence[int]]) -> list[int]:
    """Of the server's processes those that have died and have not been taken leave of, at two
    looks: at one, it may be an instance that is ending as it should."""
    first = _zombies(pids())
    if not first:
        return []
    time.sleep(_TWICE_S)
    return [pid for pid in _zombies(pids()) if pid in first]


def unfinished(endpoint: Endpoint) -> bool:
    """Whether requests wait for an instance with no load upon the server, or an instance has
    failed some since the server was started; False where the server does not tell."""
    if endpoint.metrics_url is None:
        return False
    try:
        return told(read_page(endpoint.metrics_url))
    except OSError:
        return False


def told(page: str) -> bool:
    """What a metrics page tells of it. Requests that the queue's own policy rejected, or that
    clients took back, say nothing against an instance."""
    own = [line for line in page.splitlines() if 'reason="' not in line or _BACKEND in line]
    return any(sum(parse_gauges("\n".join(own), name)) > 0 for name in (_PENDING, _FAILED))


def _zombies(pids: Sequence[int]) -> list[int]:
    return [pid for pid in pids if _is_zombie(pid)]


def _is_zombie(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
