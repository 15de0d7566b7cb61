"""Plotly's script, as browsers run it soonest: without what it is wrapped in."""

from __future__ import annotations

from plotly.offline import get_plotlyjs

_WRAPPER = "(\n function(root, factory)"
_HEAD, _TAIL = '=> {\n"use strict";', "return Plotly;\n}));"


def script() -> str:
    """Sets ``window.Plotly``."""
    return unwrapped(str(get_plotlyjs()))


def unwrapped(packaged: str) -> str:
    """All of it stands in one function, for loaders of modules. Browsers read a function when it is
    called, and functions within it twice: that takes as long as to run it. A script that is not
    wrapped in what is known here is left as it is."""
    text = packaged.rstrip()
    wrapper, begin = text.find(_WRAPPER), text.find(_HEAD)
    if not (0 <= wrapper < begin and text.endswith(_TAIL)):
        return packaged
    return f'{text[:wrapper]}"use strict";{text[begin + len(_HEAD) : -len(_TAIL)]}'
