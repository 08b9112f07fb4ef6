"""Outputs that any engine wrote, plain and speculative: are they what speculation promises?

What an engine said (capture) is recorded from an endpoint or read from files, and matched line by line (matched). Greedy
outputs are compared by where they part (greedy), sampled ones (sampled) by counts of what their texts hold (features), by
permutation tests (two_samples). A local copy of the target reads every token again (replayed). One verdict on all (verdict).
"""
