"""The Python that a bundle is for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from packaging.markers import default_environment
from packaging.tags import Tag, compatible_tags, cpython_tags

from autotune.adapters.triton.environment import GLIBC

_OLDEST_GLIBC = 5
_LEGACY = ("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """CPython of one minor version on Linux x86-64 with glibc 2.35 or newer."""

    minor: tuple[int, int]

    @property
    def version(self) -> str:
        return f"{self.minor[0]}.{self.minor[1]}"

    @property
    def abi(self) -> str:
        return f"cp{self.minor[0]}{self.minor[1]}"

    def markers(self) -> dict[str, str]:
        """What requirements' markers are evaluated by; pip knows only the Python it runs on."""
        here = {key: str(value) for key, value in default_environment().items()}
        return {
            **here,
            "implementation_name": "cpython",
            "implementation_version": f"{self.version}.0",
            "os_name": "posix",
            "platform_machine": "x86_64",
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "python_full_version": f"{self.version}.0",
            "python_version": self.version,
            "sys_platform": "linux",
            "extra": "",
        }

    def tags(self) -> frozenset[Tag]:
        """Of the wheels that it can install."""
        platforms = list(self._platforms())
        return frozenset(
            [
                *cpython_tags(self.minor, abis=[self.abi], platforms=platforms),
                *compatible_tags(self.minor, interpreter=self.abi, platforms=platforms),
            ]
        )

    def pip_options(self) -> list[str]:
        """That have `pip download` fetch wheels for it, whatever Python pip runs on."""
        options = ["--python-version", self.version, "--implementation", "cp"]
        for abi in (self.abi, "abi3", "none"):
            options += ["--abi", abi]
        for platform in self._platforms():
            options += ["--platform", platform]
        return options

    def _platforms(self) -> Iterator[str]:
        for minor in range(GLIBC[1], _OLDEST_GLIBC - 1, -1):
            yield f"manylinux_{GLIBC[0]}_{minor}_x86_64"
        yield from _LEGACY
