"""SpecDec: block drafters, blockwise heads, strict and relaxed verification rules."""
