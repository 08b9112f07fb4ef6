"""Which drafts stand and what follows them: transformers' operations, exact, sigmoid and fused kernels."""
