"""The kernels for GPUs, in Triton, behind the doors of `onepass` and `products`; imported at their first call."""
