"""Builds the compiled kernels. They are optional: without them everything works through torch's operations."""

import os
import sys
from glob import glob
from hashlib import sha256
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# Calls of OpenMP are left open for the library that torch has loaded, so that its threads are ours.
THREADS = [] if sys.platform == "darwin" else ["-fopenmp"]
# The kernels say which sources they are of, so that those of older ones are not used (pyg_basisconv/backend.py).
SOURCES = sha256(b"".join(Path(name).read_bytes() for name in sorted(glob("csrc/*.[ch]*")))).hexdigest()


class Build(build_ext):
    """Where the compiler fails, what an older build left in build/ is not taken for this one's."""

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception:
            Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)
            raise


kernels = Extension(
    "pyg_basisconv._kernels",
    sources=sorted(glob("csrc/*.cpp")),
    depends=sorted(glob("csrc/*.h")),
    language="c++",
    extra_compile_args=["-std=c++17", "-O3", "-fno-math-errno", "-fvisibility=hidden", *THREADS],
    define_macros=[("Py_LIMITED_API", "0x030B0000"), ("BASISCONV_SOURCES", f'"{SOURCES}"')],
    py_limited_api=True,  # one binary for all versions of Python, and of torch, whose headers are not read
    optional=True,
)
wanted = os.environ.get("BASISCONV_KERNELS") != "torch"  # whoever asks for those of torch compiles none
setup(
    ext_modules=[kernels] if wanted else [],
    cmdclass={"build_ext": Build},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
