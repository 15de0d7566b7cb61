"""What failed in a run of the tests, once more: one after another, with nothing beside it.

    python -m tests.alone

Several at a time, on two cores, tests that measure a real server disturb one another now and then.
One that fails alone, too, has failed; and so has all of it where tests of more than a few files did
(those of one file often share what they look at), since that is not chance. What passes alone is
named, for it is to be looked into all the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FEW = 4
FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main() -> int:
    try:
        failed = sorted(json.loads(FAILED.read_text()))
    except OSError:
        return _say(f"{FAILED} is not there: nothing is known of what failed", 1)
    files = {each.partition("::")[0] for each in failed}
    if not 0 < len(files) <= FEW:
        return _say(f"tests of {len(files)} files failed: that is more than chance", 1)
    _say(f"once more, with nothing beside it: {', '.join(failed)}", 0)
    again = subprocess.run([sys.executable, "-m", "pytest", "-n", "0", *failed], check=False)
    if again.returncode:
        return again.returncode
    return _say(f"passed alone, but not beside other tests: {', '.join(failed)}", 0)


def _say(text: str, code: int) -> int:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    return code


if __name__ == "__main__":
    sys.exit(main())
