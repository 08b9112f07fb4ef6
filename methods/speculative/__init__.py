"""Speculative decoding: the draft-and-verify loop, drafters, verify rules, schedules, acceptance, theory."""
