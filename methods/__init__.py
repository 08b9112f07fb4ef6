"""How tokens are produced: sampling, sessions with a cache, plain decoding, beams, the papers' methods, their theory."""
