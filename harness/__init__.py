"""Experiments, runs, records, tables: the harness. Its rooms, each importing only from those above it:

core      what is run and what is kept: experiments, records, files, plug-ins
zoo       small models, described by recipes and trained here
models    from a name to a loaded model
measures  from records to numbers with intervals
engines   logs that other engines write, read as counts
run       from an experiment to records; ``run.ray`` on a cluster, ``run.replay`` checks what was generated
tables    what a table, a cell and a figure are, and how one is written
exact     the exactness audit, and the contracts of parts
advise    which method and gamma to use: measured, predicted, checked
papers    a folder a paper: setups, tables, figures, claims
gpu       what a GPU can tell, part by part, and its rehearsal
report    the site, the ledger, notebooks, regression
cli       the command line

A test (tests/policy/test_structure.py) holds them to this order. Only ``cli`` imports other rooms inside functions.
"""
