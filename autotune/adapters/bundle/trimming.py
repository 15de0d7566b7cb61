"""What of the distributions stays out of a bundle, and what that costs its user.

Nothing that autotune, its load process or the server imports: a test runs all of these from a
bundle. Of costs that nobody meets (tests, headers, types) nothing is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """``patterns``, of paths below site-packages, in which ``*`` also takes in slashes; ``but``
    those of ``keep`` stay."""

    patterns: tuple[str, ...]
    keep: tuple[str, ...] = ()
    costs: str = ""

    def takes(self, path: str) -> bool:
        return _any(path, self.patterns) and not _any(path, self.keep)


DISTRIBUTIONS: Mapping[str, str] = {
    "virtualenv": "server.requirements: models import what the host’s Python has instead",
    "pytest": "",
    "setuptools": "",
    "pbr": "",
    "narwhals": "",
}
"""What is required but not packed, with all that it alone requires: Locust's plugin for pytest,
hdrhistogram's way of being built, Plotly's data frames."""

EVERYWHERE = Left(
    patterns=(
        "*.pyc",
        "*.pyi",
        "*/py.typed",
        *("*.h", "*.hpp", "*.c", "*.cc", "*.cpp", "*.cu", "*.f90", "*.pxd", "*.pyx", "*.pyx.in"),
        *("*.a", "*.cmake", "*.proto"),
        *("*/tests/*", "*/test/*"),
        *("*.dist-info/RECORD", "*.dist-info/INSTALLER", "*.dist-info/REQUESTED"),
        *("*.dist-info/direct_url.json", "*.dist-info/top_level.txt"),
    ),
)

BY_NAME: Mapping[str, tuple[Left, ...]] = {
    "alembic": (Left(patterns=("alembic/testing/*", "alembic/templates/*")),),
    "gevent": (Left(patterns=("gevent/testing/*",)),),
    "locust": (
        Left(
            patterns=("locust/webui/*", "pytest_locust/*"),
            costs="Locust’s own web page, which autotune does not use",
        ),
    ),
    "numpy": (
        Left(
            patterns=("numpy/f2py/*", "numpy/distutils/*", "numpy/_pyinstaller/*"),
            costs="numpy.f2py and numpy.distutils, which want a compiler",
        ),
    ),
    "nvidia-pytriton": (
        Left(
            patterns=("*",),
            keep=(
                "pytriton/tritonserver/bin/tritonserver",
                "pytriton/tritonserver/backends/*",
                "pytriton/tritonserver/caches/*",
                "pytriton/tritonserver/python_backend_stubs/*",
                "nvidia_pytriton.libs/*",
                "*.dist-info/*",
            ),
        ),
    ),
    "onnx": (Left(patterns=("onnx/backend/*", "onnx/bin/*", "onnx/fuzz/*")),),
    "onnxruntime": (
        Left(
            patterns=("onnxruntime/capi/libonnxruntime.so.*", "onnxruntime/datasets/*"),
            costs="the C library of ONNX Runtime: its Python module has its own",
        ),
        Left(
            patterns=(
                "onnxruntime/transformers/*",
                "onnxruntime/tools/*",
                "onnxruntime/backend/*",
                "onnxruntime/ThirdPartyNotices.txt",
            ),
            keep=(
                "onnxruntime/transformers/__init__.py",
                "onnxruntime/transformers/float16.py",
                "onnxruntime/transformers/onnx_utils.py",
                "onnxruntime/tools/__init__.py",
                "onnxruntime/tools/symbolic_shape_infer.py",
            ),
            costs="ONNX Runtime’s own command-line tools for transformers and mobile phones",
        ),
    ),
    "plotly": (
        Left(
            patterns=("*",),
            keep=(
                "plotly/*.py",
                "plotly/offline/*",
                "plotly/package_data/plotly.min.js",
                "_plotly_utils/*",
                "*.dist-info/*",
            ),
            costs="Plotly’s Python figures; the report has plotly.js and draws all of its own",
        ),
        Left(
            patterns=("plotly/*/*", "_plotly_utils/*/*"),
            keep=("plotly/offline/*", "plotly/package_data/*"),
        ),
    ),
    "scipy": (
        Left(
            patterns=(
                "scipy/cluster/*",
                "scipy/datasets/*",
                "scipy/differentiate/*",
                "scipy/fftpack/*",
                "scipy/io/*",
                "scipy/misc/*",
                "scipy/odr/*",
                "scipy/signal/*",
            ),
            costs="parts of SciPy that autotune does not use (signal, io, cluster, …)",
        ),
    ),
    "sqlalchemy": (Left(patterns=("sqlalchemy/testing/*",)),),
    "sympy": (
        Left(
            patterns=(
                "sympy/physics/*",
                "sympy/parsing/*/*",
                "sympy/integrals/rubi/*",
                "isympy.py",
            ),
            costs="SymPy’s physics and its parsers of other languages",
        ),
    ),
}


def kept(distribution: str, path: str) -> bool:
    """Whether a file of a distribution is packed."""
    rules = (EVERYWHERE, *BY_NAME.get(distribution, ()))
    return not any(rule.takes(path) for rule in rules)


def costs(distributions: set[str]) -> list[dict[str, str]]:
    """What is left out of these, where a user may miss it."""
    named = [
        {"of": name, "what": rule.costs}
        for name, rules in BY_NAME.items()
        for rule in rules
        if rule.costs and name in distributions
    ]
    return [*named, *({"of": name, "what": what} for name, what in DISTRIBUTIONS.items() if what)]


def _any(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)
