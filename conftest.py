"""What pytest collects of the package depends on what is installed."""

from importlib.util import find_spec

import pyg_basisconv  # noqa: F401 - whole, before pytest imports a file of it by itself

GRAPHGYM = find_spec("yacs") and (find_spec("lightning") or find_spec("pytorch_lightning"))
collect_ignore = [] if GRAPHGYM else ["pyg_basisconv/graphgym.py"]
if find_spec("triton") is None:
    collect_ignore += ["pyg_basisconv/kernels/triton"]
