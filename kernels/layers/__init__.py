"""Whole decoder and encoder layers as compiled loops."""
