"""The kernels for GPUs in Triton, behind the doors of `onepass`, `products` and `typed`; imported at the first call."""
