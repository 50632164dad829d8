"""Benchmarks against PyG and torch, `python -m benchmarks`, and of the planner, `python -m benchmarks.orders`."""

import os

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences the profiler; it is read when torch is loaded
