"""``autotune bundle``: one archive for a host that has no network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from autotune.bootstrap.bundling import (
    Packed,
    Part,
    default_out,
    host_needs,
    make_bundle,
    read_python,
)
from autotune.cli.console import Console
from autotune.cli.options import json_option

MIB = 2**20
LIMIT_MIB = 60
_SHOWN = 12


@click.command(
    name="bundle",
    epilog="Example:  autotune bundle --python 3.12 --out autotune.tar.xz",
)
@click.option(
    "--python",
    metavar="X.Y",
    required=True,
    help="The Python of the hosts that it is for: 3.11, 3.12 or 3.13.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="The archive.  [default: ./autotune-VERSION-pyX.Y.tar.xz]",
)
@click.option("--with-demo", is_flag=True, help="Pack the demo's model too (20 MB more).")
@click.option(
    "--level",
    type=click.IntRange(0, 9),
    default=9,
    show_default=True,
    help="How hard xz tries; 0 takes seconds and twice the room.",
)
@json_option
def command(python: str, out: Path | None, with_demo: bool, level: int, as_json: bool) -> None:
    """Pack autotune, the wheels it needs and the embedded server into one archive, for a host
    without a network.

    The host needs Linux on x86-64, glibc 2.35 and that Python; its shared libpython too, where none
    goes along, as is said at the end. What is installed here is taken where it suits that Python;
    other wheels are fetched by pip, once. See docs/air-gapped.md.
    """
    minor = read_python(python)
    packed = make_bundle(
        minor, out or default_out(minor), with_demo=with_demo, level=level, say=_say(as_json)
    )
    if as_json:
        Console.document(_as_json(packed, minor))
    else:
        _print(packed, minor)
    if packed.untouched:
        Console.note(
            "note: there is no `strip` here (package binutils): it is larger than it need be"
        )
    if level == 9 and packed.bytes > LIMIT_MIB * MIB and not with_demo:
        Console.note(f"note: larger than {LIMIT_MIB} MiB", style="yellow")


def _say(quiet: bool) -> Any:
    return (lambda _: None) if quiet else (lambda text: Console.note(f"bundle   {text}"))


def _print(packed: Packed, python: tuple[int, int]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, how in (("part", "left"), ("for", "left"), ("MB", "right"), ("MiB packed", "right")):
        table.add_column(name, justify=how)  # type: ignore[arg-type]
    for part in packed.parts[:_SHOWN]:
        table.add_row(_words(part), _folder(part), f"{part.bytes / 1e6:.1f}", _mib(part))
    rest = packed.parts[_SHOWN:]
    total = Part(
        name=f"{len(rest)} more",
        version="",
        folder="",
        files=0,
        bytes=sum(part.bytes for part in rest),
        packed_bytes=sum(part.packed_bytes for part in rest),
    )
    if rest:
        table.add_row(total.name, "", f"{total.bytes / 1e6:.1f}", _mib(total))
    Console.out.print(table)
    Console.plain("\nleft out:")
    for left in packed.left_out:
        Console.plain(f"  {left['of']}: {left['what']}")
    Console.plain(f"\n{packed.path}: {packed.bytes / MIB:.1f} MiB")
    Console.plain(f"sha256 {packed.sha256}")
    Console.plain("")
    Console.hanging(Text(f"On the host, which needs {host_needs(packed, python)}:"), "")
    Console.plain(f"  tar xf {packed.path.name} && cd {packed.top} && ./autotune doctor")


def _words(part: Part) -> str:
    return f"{part.name} {part.version}".strip()


def _folder(part: Part) -> str:
    return "server" if part.folder.startswith("server") else "tool"


def _mib(part: Part) -> str:
    return f"{part.packed_bytes / MIB:.1f}"


def _as_json(packed: Packed, python: tuple[int, int]) -> dict[str, Any]:
    return {
        "path": str(packed.path),
        "bytes": packed.bytes,
        "sha256": packed.sha256,
        "folder": packed.top,
        "parts": [
            {name: getattr(part, name) for name in Part.__dataclass_fields__}
            for part in packed.parts
        ],
        "left_out": list(packed.left_out),
        "libpython": packed.libpython,
        "host_needs": host_needs(packed, python),
        "stripped": not packed.untouched,
    }
