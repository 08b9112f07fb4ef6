"""Puts the helper module of these tests on the path."""
