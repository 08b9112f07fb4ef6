"""Kernels, a folder an operation: ``verify``, each next to its reference; ``products``; whole ``layers`` and drafts by them.

``native`` compiles C++ sources; ``numbers.h`` is what they share; ``capture`` makes CUDA graphs.
"""
