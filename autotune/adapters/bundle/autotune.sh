#!/bin/sh
# autotune on this host, from this folder:  ./autotune doctor
here=$(CDPATH='' cd -- "$(dirname -- "$(readlink -f -- "$0")")" && pwd -P) || exit 1
if [ ! -x "$here/python" ]; then
  echo "autotune: the bundle is damaged: unpack it again (gone: python)" >&2
  echo "  its folder: $here" >&2
  exit 1
fi
exec "$here/python" -P -m autotune "$@"
