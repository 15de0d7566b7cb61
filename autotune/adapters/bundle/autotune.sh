#!/bin/sh
# autotune on this host, from this folder:  ./autotune doctor
here=$(CDPATH='' cd -- "$(dirname -- "$(readlink -f -- "$0")")" && pwd -P) || exit 1
exec "$here/python" -P -m autotune "$@"
