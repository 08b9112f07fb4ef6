"""Logs that other engines write: a module an engine or tool, ``formats`` recognises them, ``profile`` also writes one format.

Each format is taken from the engine's own source, at the commit that its module names. What an engine derives from its counts
is derived here again, under its name; a log whose numbers contradict one another is refused.

transformers is not among them: its assisted generation returns and writes no counts (``_assisted_decoding`` of 5.23 keeps
``n_matches`` to itself; only a streamer sees where a round ends). The method ``transformers`` records its rounds as ours.
"""
