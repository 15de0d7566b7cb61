#!/usr/bin/env bash
# The GPU check in one command, at most 8 minutes on one GPU: see docs/gpu-check.md.
#
#   tests/gpu/run.sh BUNDLE OUT [--minutes 8] [--device cpu|cuda] [--tiny]
#   tests/gpu/run.sh --checkout OUT [the same]
#
# BUNDLE is an unpacked bundle's folder, or its .tar.xz, which is unpacked into a temporary folder.
# --checkout runs from this checkout with its .venv. Results: OUT/table.md and OUT/results.json.
set -euo pipefail

usage() {
  sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

say() { echo "$*" >&2; }

[ $# -ge 2 ] || usage
place=$1
mkdir -p "$2"
out=$(cd "$2" && pwd)
shift 2

scratch=
child=
clean() {
  [ -z "$scratch" ] || rm -rf "$scratch"
}
trap clean EXIT

unpack() { # a host may lack xz, which its Python then has
  local each
  if command -v xz >/dev/null; then
    tar -xJf "$1" -C "$2" && return
  else
    for each in "${AUTOTUNE_PYTHON:-python3}" python3 python python3.11 python3.12 python3.13; do
      "$each" -m tarfile -e "$1" "$2" 2>/dev/null && return
    done
  fi
  say "$1 cannot be unpacked into $2: that takes 400 MB there (TMPDIR says where), and xz or a Python with lzma"
  exit 2
}

if [ "$place" = --checkout ]; then
  top=$(cd "$(dirname "$0")/../.." && pwd)
  python=$top/.venv/bin/python
  [ -x "$python" ] || { say "there is no $python: run \`make env\` first"; exit 2; }
else
  if [ -f "$place" ]; then
    scratch=$(mktemp -d)
    say "unpacking $place"
    unpack "$place" "$scratch"
    for place in "$scratch"/*; do :; done
  fi
  [ -f "$place/bundle.json" ] || { say "$place is no unpacked bundle: it has no bundle.json"; exit 2; }
  top=$(cd "$place" && pwd)
  python=$top/python
  # Nothing is written outside OUT; the bundle may be read-only, and HOME empty.
  export AUTOTUNE_CACHE=${AUTOTUNE_CACHE:-$out/work/cache}
  export PYTHONDONTWRITEBYTECODE=1
fi

# As a child, so that the temporary folder is removed however it ends. What a shell starts in the
# background ignores Ctrl-C; SIGTERM stops the check as well, and its results are kept.
cd "$top"
"$python" -m tests.gpu --out "$out" "$@" &
child=$!
trap 'stopped=yes; kill -TERM "$child" 2>/dev/null || true' INT TERM HUP
status=0
stopped=yes
while [ -n "$stopped" ]; do # a signal ends the waiting, not yet the check
  stopped=
  wait "$child" && status=0 || status=$?
done
exit "$status"
