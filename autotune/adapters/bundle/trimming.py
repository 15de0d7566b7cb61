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
    **dict.fromkeys(("aiohttp", "narwhals", "pbr", "pytest", "pygments", "markdown-it-py"), ""),
    **dict.fromkeys(("python-engineio", "python-socketio", "pyyaml", "setuptools"), ""),
}
"""What is required but not packed, with all that it alone requires: tritonclient's asynchronous
client, Plotly's data frames, hdrhistogram's way of being built, Locust's plugin for pytest and its
Socket.IO users, Rich's colours for code and Markdown, Optuna's own command line."""

_OF_SCIPY = (
    *("cluster", "constants", "datasets", "differentiate", "fft", "fftpack", "integrate"),
    *("interpolate", "io", "linalg", "misc", "ndimage", "odr", "optimize", "signal", "sparse"),
    *("spatial", "stats"),
)
"""Every part but scipy.special."""

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
    "gevent": (
        Left(patterns=("gevent/testing/*", "gevent/libuv/*.so", "gevent/resolver/cares*.so")),
    ),
    "locust": (
        Left(
            patterns=("locust/webui/*", "pytest_locust/*"),
            costs="Locust’s own web page, which autotune does not use",
        ),
    ),
    "numpy": (
        Left(
            patterns=("numpy/distutils/*", "numpy/_pyinstaller/*"),
            costs="numpy.distutils, which wants a compiler",
        ),
        Left(
            patterns=("numpy/*_tests.*.so", "numpy/*/_simd.*.so"),
            keep=("numpy/*/_multiarray_tests.*.so",),
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
            costs="ICU’s tables: remote model repositories whose lists are not in UTF-8",
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
                "onnxruntime/transformers/fusion_utils.py",
                "onnxruntime/transformers/onnx_model.py",
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
            patterns=tuple(f"scipy/{part}/*" for part in _OF_SCIPY),
            costs="all of SciPy but scipy.special, and of that the ellipsoidal harmonics, also for"
            " functions that a study names",
        ),
        Left(
            patterns=(
                "scipy/_lib/cobyqa/*",
                "scipy/_lib/pyprima/*",
                "scipy/special/_precompute/*",
                "scipy/special/cython_special.*",
                "scipy/conftest.py",
                "scipy/*/_test_*.so",
            ),
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
