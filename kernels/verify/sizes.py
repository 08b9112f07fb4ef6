"""The sizes that the GPU kernels are configured with, and the bytes that a kernel moves. Needs neither torch nor Triton."""

TILE = 1024  # of the exact and sigmoid kernels; the paper's n: the threads of a block on its A100
# Of the fused kernel: of the row that decides, and of the pass over all rows with the warps of a program (``fused_gpu``).
FUSED_TILES = (1024, 2048, 4096)
FUSED_ROW_TILES = {2048: 8, 8192: 4}
NUM_WARPS = 8
FLOAT, DOUBLE = 4, 8
ITEM_SIZE = {"float32": 4, "bfloat16": 2, "float16": 2}


def bytes_moved(kernel: str, batch: int, gamma: int, vocab_size: int, dtype: str, filtered: bool = False) -> int:
    """Count bytes read and written by one call that looks at every draft, with caches that hold nothing between operations.

    The last token's row counts once for each pass over it. The draft comes with its log-sum-exp, as a model drafter's does:
    the fused kernel sums the draft's rows itself only where they are ``filtered``. Sizes that do not grow with the vocabulary
    are left out. An upper bound for the CPU paths of "fused" and the sigmoids, which read fewer rows. Filters' own passes are
    left out.
    """
    size = ITEM_SIZE[dtype]
    logits, rows = (2 * gamma + 1) * size, (2 * gamma + 1) * FLOAT
    if size < FLOAT:
        rows += 2 * (2 * gamma + 1) * FLOAT  # logits widened before their softmax: written, and read again
    summed = (gamma + 1 + (gamma if filtered else 0)) * size
    draw = 2 * FLOAT + 2 * DOUBLE  # weights summed and read again; the cumulative sum written and searched
    eager = 3 * FLOAT + 3 * FLOAT + draw  # difference and clamp of one row, its division, the draw
    tiles = 2 * gamma * FLOAT  # ratio and residual written
    per_token = {
        "transformers": logits + rows + eager,
        "baseline": logits + rows + eager,
        "exact": logits + rows + 2 * gamma * FLOAT + tiles + FLOAT + draw,
        "sigmoid": 2 * gamma * size + tiles + size + FLOAT + draw,
        "sigmoid-released": 2 * gamma * size + tiles + size + FLOAT + draw,
        "fused": summed + 2 * size,  # the rows that are summed once, then the two rows that decide
    }
    return batch * vocab_size * per_token[kernel]
