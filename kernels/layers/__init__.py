"""Whole decoder layers as compiled loops, for passes over few rows."""
