"""Programs and shared libraries: what they link, and what can be taken off them.

By the tools of the machine that packs, each missed without harm: without ``ldd`` every library is
packed, without ``strip`` each stays as large as it came.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_TIMEOUT_S = 120
_HEADER = struct.Struct("<Q14xHH")
"""Of a 64-bit ELF file, from e_phoff: where the program headers are, how long and how many."""
_HEADER_AT = 32
_SEGMENT = struct.Struct("<I4xQQ24xQ")
"""A program header's type, offset, virtual address and alignment."""
_LOADED = 1
_SECTIONS = struct.Struct("<Q10xHHH")
"""From e_shoff: where the section headers are, how long and how many, which one has the names."""
_SECTIONS_AT = 40
_SECTION = struct.Struct("<I20xQQ24x")
"""A section's name, offset and size."""


def linked(programs: Iterable[Path], folder: Path) -> set[str] | None:
    """Names of the libraries of ``folder`` that the loader would take for the programs, and for
    those in turn. None where there is no ``ldd``, or one that says nothing of one of them."""
    ldd = shutil.which("ldd")
    told = [_output([ldd, str(program)]) for program in programs] if ldd else [""]
    if not all(told):
        return None
    paths = [Path(word) for text in told for word in text.split() if word.startswith("/")]
    return {path.name for path in paths if path.parent.resolve() == folder.resolve()}


def strip(files: Sequence[Path]) -> bool:
    """Take off what no loader reads; whether there was a tool for it. A file that ``strip`` refuses
    or makes useless stays as it is."""
    tool = shutil.which("strip")
    if tool is None:
        return False
    with ThreadPoolExecutor() as workers:
        list(workers.map(lambda file: _strip(tool, file), files))
    return True


def _strip(tool: str, file: Path) -> None:
    smaller = file.with_name(f".{file.name}.stripped")
    try:
        _output([tool, "--strip-unneeded", "-o", str(smaller), str(file)])
        if smaller.is_file() and loads(smaller):
            smaller.replace(file)
    finally:
        smaller.unlink(missing_ok=True)


def blank(file: Path) -> None:
    """Fill a library's read-only data with zeros, of which next to nothing is packed."""
    content = bytearray(file.read_bytes())
    start, size, count, names = _SECTIONS.unpack_from(content, _SECTIONS_AT)
    sections = [_SECTION.unpack_from(content, start + number * size) for number in range(count)]
    name_at = sections[names][1]
    for name, offset, length in sections:
        if content.startswith(b".rodata\0", name_at + name):
            content[offset : offset + length] = bytes(length)
    file.write_bytes(content)


def loads(file: Path) -> bool:
    """Whether the loader would accept how the segments of a file lie: ``strip`` breaks some of
    those that ``patchelf`` has worked on."""
    content = file.read_bytes()
    start, size, count = _HEADER.unpack_from(content, _HEADER_AT)
    for at in range(start, start + size * count, size):
        kind, offset, address, alignment = _SEGMENT.unpack_from(content, at)
        if kind == _LOADED and alignment and (address - offset) % alignment:
            return False
    return True


def _output(command: list[str]) -> str:
    """What it says, whether or not it is content: `ldd` is not, of a library that is nowhere."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
