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

refuse() {
  say "$@"
  exit 2
}

[ $# -ge 2 ] || usage
place=$1
out=$2
shift 2

# Looked at before anything takes time, made when it is known what is to run.
[ -n "$out" ] || refuse "OUT is a folder for the results, and none is named"
[ ! -e "$out" ] || [ -d "$out" ] || refuse "OUT is a folder for the results, and $out is a file"
above=$out
while [ ! -e "$above" ]; do above=$(dirname -- "$above"); done
[ -d "$above" ] && [ -w "$above" ] && [ -x "$above" ] \
  || refuse "$out cannot be written: $above may not be; give another OUT"

scratch=
child=
clean() {
  [ -z "$scratch" ] || rm -rf "$scratch"
}
trap clean EXIT

free_mb() {
  df -Pm "$1" | { read -r _ && read -r _ _ _ free _ && echo "$free"; }
}

unpack() { # a host may lack xz, which its Python then has
  local each
  if command -v xz >/dev/null; then
    tar -xJf "$1" -C "$2" && return
  else
    for each in "${AUTOTUNE_PYTHON:-python3}" python3 python python3.11 python3.12 python3.13; do
      "$each" -c 'import lzma' 2>/dev/null || continue
      "$each" -m tarfile -e "$1" "$2" && return
      break
    done
    [ "$each" != python3.13 ] || say "there is neither xz nor a Python with lzma here"
  fi
  say "$1 cannot be unpacked into $2 (TMPDIR says where; it takes 400 MB, and $(free_mb "$2") MB are free)."
  refuse "Where there is room it is cut short or damaged: compare its sha256 with what \`autotune bundle\` said"
}

if [ "$place" = --checkout ]; then
  top=$(cd "$(dirname "$0")/../.." && pwd)
  python=$top/.venv/bin/python
  [ -x "$python" ] || refuse "there is no $python: run \`make env\` first"
else
  if [ -f "$place" ]; then
    archive=$place
    scratch=$(mktemp -d)
    say "unpacking $archive"
    unpack "$archive" "$scratch"
    for place in "$scratch"/*; do :; done
    [ -d "$place/site" ] || refuse "$archive is no bundle of autotune, or is damaged: compare its sha256 with what \`autotune bundle\` said"
  fi
  [ -d "$place" ] || refuse "there is no $place: BUNDLE is an unpacked bundle's folder, or its .tar.xz"
  top=$(cd "$place" && pwd)
  parts=0
  gone=
  for each in bundle.json python start.py site server tests/gpu; do
    if [ -e "$top/$each" ]; then parts=$((parts + 1)); else gone="$gone $each"; fi
  done
  [ "$parts" -gt 1 ] || refuse "$place is no unpacked bundle: it lacks$gone"
  [ "$gone" != " tests/gpu" ] || refuse "the bundle $place has no GPU check: one that is made in a checkout has it; or it is damaged, then unpack it again"
  [ -z "$gone" ] || refuse "the bundle $place is damaged: unpack it again (gone:$gone)"
  python=$top/python
  [ -x "$python" ] || refuse "$python may not be executed: unpack the bundle again, on a file system that is not mounted noexec"
  # What else it lacks it says itself, before anything is written to OUT. The bundle may be read-only.
  export PYTHONDONTWRITEBYTECODE=1
  tried=$(mktemp -d)
  AUTOTUNE_CACHE=$tried AUTOTUNE_WORK=$tried "$python" -c 'import tests.gpu' || { rm -rf "$tried"; exit 2; }
  rm -rf "$tried"
fi

mkdir -p "$out" && [ -w "$out" ] || refuse "$out cannot be written: give another OUT"
out=$(cd "$out" && pwd)
if [ "$place" != --checkout ]; then
  # Nothing is written outside OUT; HOME may be empty.
  export AUTOTUNE_CACHE=${AUTOTUNE_CACHE:-$out/work/cache}
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
