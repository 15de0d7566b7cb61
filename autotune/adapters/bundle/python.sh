#!/bin/sh
# Python @VERSION@ of this host with what this bundle brings:  ./python -m tests.gpu --help
# The host's own packages are there too, after the bundle's. AUTOTUNE_PYTHON names another Python.
set -u
here=$(CDPATH='' cd -- "$(dirname -- "$(readlink -f -- "$0")")" && pwd -P) || exit 1

if [ ! -f "$here/start.py" ]; then
  echo "autotune: the bundle is damaged: unpack it again (gone: start.py)" >&2
  echo "  its folder: $here" >&2
  exit 1
fi

suits() {
  "$1" -I -c 'import sys; sys.exit(sys.version_info[:2] != @MINOR@)' >/dev/null 2>&1
}

found=
if [ -n "${AUTOTUNE_PYTHON:-}" ]; then
  if suits "$AUTOTUNE_PYTHON"; then
    found=$AUTOTUNE_PYTHON
  else
    echo "autotune: AUTOTUNE_PYTHON is no Python @VERSION@ that runs here: $AUTOTUNE_PYTHON" >&2
    exit 1
  fi
else
  for each in python@VERSION@ python3 python /usr/bin/python@VERSION@ /usr/local/bin/python@VERSION@ \
    /opt/*/bin/python@VERSION@ "${HOME:-}"/.pyenv/versions/@VERSION@*/bin/python@VERSION@ \
    "${HOME:-}"/.local/share/uv/python/cpython-@VERSION@*/bin/python@VERSION@; do
    if suits "$each"; then
      found=$each
      break
    fi
  done
fi
if [ -z "$found" ]; then
  echo "autotune: this host lacks Python @VERSION@, for which this bundle was made" >&2
  echo "  install it and its shared library (Debian, Ubuntu: python@VERSION@ and libpython@VERSION@;" >&2
  echo "  Fedora, RHEL: python@VERSION@ and python@VERSION@-libs), or say where it is:" >&2
  echo "  AUTOTUNE_PYTHON=/path/to/python@VERSION@; or make a bundle for the Python that is here" >&2
  exit 1
fi
exec "$found" -I "$here/start.py" "$@"
