"""Packs autotune, the wheels it needs and the embedded server into one archive for a host that has
no network: see docs/air-gapped.md.

    target     the Python that the archive is for: its wheel tags and markers
    pins       which versions, from the lock files
    wanted     which distributions, from what each says that it requires
    sources    where each comes from: installed here, or a wheel
    trimming   what of a distribution stays out, and what that costs
    libraries  which shared libraries stay
    binaries   what programs link, and taking off what they do not need
    staged     the folder as it grows, and whose each file is
    own        autotune's own packages, the example and the GPU check
    server     tritonserver, the Python backend and the libraries that they link
    start      the host's side: what the unpacked folder's `python` runs first
    archive    the .tar.xz
    pack       the order of it all
"""
