"""Every benchmark, one after another: `make bench`."""

from __future__ import annotations

import os
import sys

from tests.benchmarks import (
    comparing,
    coverage,
    drifting,
    load_generator,
    perf_analyzer,
    same_or_slower,
    starved_gpu,
    study_share,
    telemetry_overhead,
)


def main() -> None:
    sys.argv[1:] = []
    load_generator.main()
    if os.environ.get("PERF_ANALYZER"):
        perf_analyzer.main()
    else:
        sys.stdout.write("\nperf_analyzer: left out, PERF_ANALYZER does not name it\n\n")
    study_share.main()
    same_or_slower.main()
    comparing.main()
    drifting.main()
    coverage.main()
    starved_gpu.main()
    telemetry_overhead.main()


if __name__ == "__main__":
    main()
