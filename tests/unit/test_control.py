"""What is said of a server that does not answer."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from autotune.adapters.triton.control import Control, Unanswered


def test_a_server_that_hangs_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        with (
            closing(Control(address, "ocr", call_timeout_s=0.3)) as control,
            pytest.raises(Unanswered, match=f"the server at {address} did not answer within 0.3 s"),
        ):
            control.loaded()
