"""Names of the files in which trained parts are kept. Imports nothing, so that to name a part does not load it."""

EARLY_HEADS = "heads.safetensors"
BLOCKWISE_HEADS = "blockwise.safetensors"
NGRAM_TABLE = "ngram.safetensors"
