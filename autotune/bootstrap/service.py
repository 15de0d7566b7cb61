"""The service's stores, opened, and who uses them from the command line."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import closing, contextmanager

from storage.service import ServiceStore


@contextmanager
def open_service(db: str, *, create: bool = True) -> Iterator[ServiceStore]:
    """The stores of a URL or path; a missing database is refused unless ``create``."""
    with closing(ServiceStore(db, create=create)) as store:
        yield store


def local_user() -> str:
    """Who is named in the audit trail for what a command does."""
    uid = os.getuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:  # a container's user without an entry
        name = str(uid)
    return f"cli:{name}"
