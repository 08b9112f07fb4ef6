"""Kernels, a folder an operation, each next to its reference: ``verify``, ``products``. ``native`` compiles C++ sources."""
