"""The Triton kernels in Triton's interpreter; ``test_verify_triton.py`` runs this file in a process of its own.

Every output and partial result is poisoned with NaN (integers with their largest) before a kernel runs.
"""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from kernels.inputs import InputError
from kernels.verify import fused_gpu, reference
from kernels.verify.check import DTYPES, Case, check, patched_once, random_case, random_cases
from kernels.verify.filter_gpu import scratch, thresholds
from kernels.verify.interface import Proposal
from kernels.verify.reference import Sampling, adjusted_logits, adjusted_probs
from kernels.verify.registry import KERNELS

PLAIN = Sampling(temperature=1.0)
EXACT_TRITON = ("exact", "fused")
NUM_ROWS = {"exact": 300, "fused": 300, "sigmoid": 60, "sigmoid-released": 60}
NUM_ROWS_HALF = NUM_ROWS | {"fused": 120}  # the types differ in how logits are loaded; the many branches are float32's to try


@pytest.fixture(scope="module", autouse=True)
def _poisoned_and_patched() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert bool(torch.empty(3).isnan().all())
    with patched_once():
        yield
    torch.use_deterministic_algorithms(False)


def case(
    target: Tensor,
    draft: Tensor | None,
    tokens: Tensor,
    uniforms: Tensor,
    lengths: tuple[int, ...] | None = None,
    sampling: Sampling = PLAIN,
    known: Tensor | None = None,
) -> Case:
    lengths = (tokens.shape[1],) * len(tokens) if lengths is None else lengths
    return Proposal(tokens, lengths, draft, sampling, known), target, sampling, uniforms


def run(kernel: str, given: Case) -> tuple[list[int], list[int]]:
    decisions = KERNELS[kernel](*given, backend="triton")
    assert not decisions.target_probs.isnan().any()
    assert not decisions.draft_probs.isnan().any()
    return decisions.num_accepted.tolist(), decisions.next_token.tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", NUM_ROWS)
def test_random_rounds(kernel: str, dtype: str) -> None:
    num_rows = (NUM_ROWS if dtype == "float32" else NUM_ROWS_HALF)[kernel]
    report = check(kernel, random_cases(num_rows, DTYPES[dtype], seed=1), DTYPES[dtype], "triton")
    print(report.as_text())
    assert report.num_rows == num_rows
    assert report.passed, report.as_text()


def test_filtered_rounds() -> None:
    report = check("fused", random_cases(9, torch.float32, seed=2, filtered_every=1, batch=3), torch.float32, "triton")
    assert report.passed, report.as_text()
    assert report.num_rows == 9


@pytest.mark.parametrize("kernel", EXACT_TRITON)
def test_rounds_of_several_tiles(kernel: str) -> None:
    """9,001 tokens, three tiles of the fused kernels and nine of the others, with top-k and top-p and without."""
    generator = torch.Generator().manual_seed(3)
    for index, is_filtered in ((198, False), (199, True)):
        given = random_case(generator, torch.float32, 2 if is_filtered else 10, is_filtered, index)
        report = check(kernel, [given], torch.float32, "triton")
        assert (given[1].shape[-1], report.num_wrong) == (9001, 0), report.as_text()
        assert report.num_inside <= 1


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, top_k=3),
        Sampling(temperature=1.0, top_k=9),
        Sampling(temperature=1.0, top_p=0.6),
        Sampling(temperature=0.7, top_k=4, top_p=0.7),
    ],
    ids=str,
)
def test_thresholds_keep_what_transformers_keeps(sampling: Sampling) -> None:
    """With ties at the cut, masked tokens and -0: the same tokens as by topk and a stable sort."""
    generator = torch.Generator().manual_seed(3)
    logits = (2 * torch.randn(1, 3, 9, generator=generator)).round()
    logits[0, 0, :6], logits[0, 1, 2], logits[0, 2, :3] = 1.0, float("-inf"), -0.0
    [(limits, ties)] = thresholds((logits, sampling))
    keep = (logits > limits[..., None]) | ((logits == limits[..., None]) & (torch.arange(9) >= ties[..., None]))
    assert torch.equal(keep & logits.isfinite(), adjusted_logits(logits.double(), sampling).isfinite())


def kth(rows: Tensor, top_k: int) -> Tensor:
    return rows.float().topk(min(top_k, rows.shape[-1])).values[..., -1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab_size", [1, 2, 2048, 2049, 33_000])
def test_top_k_is_that_of_topk(vocab_size: int, dtype: str) -> None:
    """Rows of one tile and of several, batched and strided: many values, few, one, nearly all masked, 0 of both signs."""
    generator = torch.Generator().manual_seed(vocab_size)
    logits = 4 * torch.randn(2, 5, vocab_size + 3, generator=generator)
    logits[:, 1] = logits[:, 1].round()
    logits[:, 2, 2:] = float("-inf")
    logits[:, 3] = -5.0
    logits[:, 4] = torch.where(logits[:, 4] < 0, -0.0, torch.where(logits[:, 4] < 3, 0.0, 1e-6))
    rows = logits.to(DTYPES[dtype])[..., :vocab_size]
    for top_k in {1, 50, vocab_size - 1} - {0}:
        [(limits, ties)] = thresholds((rows, Sampling(temperature=0.7, top_k=top_k)))
        expected = kth(rows, top_k) if top_k < vocab_size else torch.tensor(float("-inf"))
        assert torch.equal(limits, expected.expand(2, 5))
        assert not ties.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_border_between_digits_is_found(dtype: str) -> None:
    """Each number right below, at and above a digit's change, of both signs, in any order; some of them as the k-th.

    All of these numbers differ, so that a digit that is off by one gives another threshold.
    """
    bits = 32 if dtype == "float32" else 16
    first = [digit << shift for shift in range(0, bits, 8) for digit in range(128 if shift == bits - 8 else 256)]
    magnitudes = torch.tensor(sorted({max(border + step, 0) for border in first for step in (-1, 0, 1)}))
    integers = torch.cat((magnitudes, magnitudes[1:] - (1 << (bits - 1)))).to(torch.int32 if bits == 32 else torch.int16)
    numbers = integers.view(DTYPES[dtype])
    numbers = numbers[numbers.isfinite()]
    if dtype == "bfloat16":  # the interpreter widens subnormal ones to others
        numbers = numbers[(numbers == 0) | (numbers.float().abs() >= torch.finfo(numbers.dtype).tiny)]
    row = torch.cat((numbers, torch.full((1000,), float("-inf"), dtype=numbers.dtype)))  # several tiles
    row = row[torch.randperm(len(row), generator=torch.Generator().manual_seed(1))].expand(1, 1, -1)
    for top_k in range(1, len(numbers), 61 if bits == 32 else 17):  # neither is a multiple of 3
        [(limits, _)] = thresholds((row, Sampling(temperature=1.0, top_k=top_k)))
        assert torch.equal(limits, kth(row, top_k)), top_k


@pytest.mark.parametrize("dtypes", [("float16", "float16"), ("bfloat16", "float32")])
@pytest.mark.parametrize("top_ks", [(3, 70), (5000, None), (None, 1)])
def test_each_model_has_its_own_top_k(top_ks: tuple[int | None, int | None], dtypes: tuple[str, str]) -> None:
    """Or none, which is that of all tokens; and logits of another dtype."""
    logits = 4 * torch.randn(2, 5, 5001, generator=torch.Generator().manual_seed(6))
    rows = (logits[:, :3].to(DTYPES[dtypes[0]]), logits[:, 3:].to(DTYPES[dtypes[1]]))
    samplings = [Sampling(temperature=1.0, top_k=top_k, top_p=None if top_k else 1.0) for top_k in top_ks]
    for part, top_k, (limits, ties) in zip(rows, top_ks, thresholds(*zip(rows, samplings, strict=True)), strict=True):
        assert torch.equal(limits, kth(part, top_k or part.shape[-1]))
        assert not ties.any()


def test_a_threshold_is_a_number_whatever_is_nan() -> None:
    """NaN of a set sign bit is below all numbers, other NaN above: then the threshold is -inf or +inf."""
    nan = float("nan")
    rows = torch.tensor([[[1.0, nan, nan, 2.0], [-nan, -nan, -nan, 2.0], [1.0, nan, 3.0, 2.0]]])
    [(limits, _)] = thresholds((rows, Sampling(temperature=1.0, top_k=2)))
    assert limits.tolist() == [[float("inf"), float("-inf"), 3.0]]


def test_two_models_keep_what_their_own_filters_keep() -> None:
    """Both are looked at in one launch, by what either asks for: top-p of 1, or none, keeps all that top-k keeps."""
    logits = 3 * torch.randn(2, 5, 40, generator=torch.Generator().manual_seed(4))
    logits[1, 3:, 7:] -= 90  # whose exponentials are nothing beside the largest
    models = (
        (logits[:, :3], Sampling(temperature=1.0, top_p=0.6)),
        (logits[:, 3:], Sampling(temperature=1.0, top_k=30, top_p=1.0)),
    )
    for (rows, sampling), (limits, ties) in zip(models, thresholds(*models), strict=True):
        keep = (rows > limits[..., None]) | ((rows == limits[..., None]) & (torch.arange(40) >= ties[..., None]))
        assert torch.equal(keep, adjusted_logits(rows.double(), sampling).isfinite())


def test_parts_of_scratch_memory_are_aligned() -> None:
    """A part that begins elsewhere has its kernels compiled apart, in a text that is timed."""
    parts = scratch(torch.float32, torch.device("cpu"), 5, 0, 7, 4)
    assert all(part.data_ptr() % 16 == 0 for part in parts)
    assert [len(part) >= count for part, count in zip(parts, (5, 0, 7, 4), strict=True)] == [True] * 4


@pytest.mark.parametrize(("vocab_size", "tile_size"), [(1025, 1024), (4095, 4096), (4097, 4096), (9001, 2048)])
@pytest.mark.parametrize("kind", ["logits", "log-sum-exp", "point mass"])
def test_several_tiles(vocab_size: int, tile_size: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vocabularies around a multiple of the tile; the last token lies in the last, ragged tile for uniforms close to 1."""
    monkeypatch.setattr(fused_gpu, "FUSED_TILES", (tile_size,))
    monkeypatch.setattr(fused_gpu, "MOST_ROW_TILES", 0 if tile_size == 2048 else 16)  # rows by the larger tiles, or the smaller
    generator = torch.Generator().manual_seed(vocab_size)
    target = 2 * torch.randn(4, 2, vocab_size, generator=generator)
    draft = target[:, :1] + torch.randn(4, 1, vocab_size, generator=generator)
    tokens = reference.inverse_cdf(draft.softmax(-1), torch.rand(4, 1, generator=generator, dtype=torch.float64))
    uniforms = torch.tensor([[0.9999, 0.0], [0.9999, 0.5], [0.0, 0.999999], [0.3, 0.25]], dtype=torch.float64)
    known = draft.logsumexp(-1) if kind == "log-sum-exp" else None
    given = case(target, None if kind == "point mass" else draft, tokens, uniforms, known=known)
    for kernel in EXACT_TRITON:
        report = check(kernel, [given], torch.float32, "triton")
        assert report.num_wrong == 0
        assert report.num_inside <= 1  # of four


@pytest.mark.parametrize("kernel", EXACT_TRITON)
def test_all_accepted_first_rejected_and_ragged(kernel: str) -> None:
    target = torch.zeros(3, 3, 7)
    target[0, :, 5] = target[1, :, 1] = target[2, :, 1] = 40.0  # all but certain
    draft, tokens = target[:, :2].clone(), torch.tensor([[5, 5], [6, 1], [1, 3]])
    draft[1] = 0.0
    uniforms = torch.full((3, 3), 0.999, dtype=torch.float64)
    assert run(kernel, case(target, draft, tokens, uniforms, lengths=(2, 2, 1))) == ([2, 0, 1], [5, 1, 1])


@pytest.mark.parametrize("kernel", EXACT_TRITON)
def test_probabilities_of_0_and_1_and_uniforms_at_the_ends(kernel: str) -> None:
    """A token that the target never emits is refused at uniform 0, and none of weight 0 is drawn, at either end."""
    minus = float("-inf")
    target = torch.tensor([[[minus, 0.0, 0.0, minus], [minus, minus, 0.0, minus]]]).repeat(3, 1, 1)
    draft = torch.tensor([[[0.0, minus, minus, minus]]]).repeat(3, 1, 1)
    uniforms = torch.tensor([[0.0, 0.0], [0.0, 1 - 2.0**-53], [0.5, 0.4999]], dtype=torch.float64)
    tokens = torch.zeros(3, 1, dtype=torch.long)
    assert run(kernel, case(target, draft, tokens, uniforms)) == ([0, 0, 0], [1, 2, 1])
    certain = torch.tensor([[[minus, 0.0, minus, minus]] * 2])
    assert run(kernel, case(certain, certain[:, :1], torch.tensor([[1]]), uniforms[1:2])) == ([1], [1])


@pytest.mark.parametrize("kernel", EXACT_TRITON)
def test_equal_models_accept_everything_and_no_draft_draws(kernel: str) -> None:
    logits = torch.randn(2, 3, 33, generator=torch.Generator().manual_seed(0))
    tokens, uniforms = torch.tensor([[3, 4], [5, 6]]), torch.full((2, 3), 0.99999, dtype=torch.float64)
    assert run(kernel, case(logits, logits[:, :2], tokens, uniforms))[0] == [2, 2]
    alone = case(logits[:, :1], None, tokens[:, :0], uniforms[:, :1])
    drawn = reference.inverse_cdf(logits[:, 0].double().softmax(-1), uniforms[:, 0])
    assert run(kernel, alone) == ([0, 0], drawn.tolist())
    few = Sampling(temperature=1.0, top_k=32)
    filtered = case(logits[:, :1], logits[:, :0], tokens[:, :0], uniforms[:, :1], sampling=few)
    drawn = reference.inverse_cdf(adjusted_probs(logits[:, 0].double(), few), uniforms[:, 0])
    assert run(kernel, filtered) == ([0, 0], drawn.tolist())


def test_strided_and_expanded_logits() -> None:
    """Rows need not lie next to each other, and a batch may be one row expanded."""
    generator = torch.Generator().manual_seed(5)
    wide = torch.randn(2, 5, 2 * 63, generator=generator)
    target, draft = wide[:1, ::2, :63].expand(4, -1, -1), wide[:1, 1:3, 63:].expand(4, -1, -1)
    tokens, uniforms = torch.tensor([[1, 2]] * 4), torch.rand(4, 3, generator=generator, dtype=torch.float64)
    for kernel in EXACT_TRITON:
        assert check(kernel, [case(target, draft, tokens, uniforms)], torch.float32, "triton").num_wrong == 0


@pytest.mark.parametrize("kernel", ["exact", "fused", "sigmoid", "sigmoid-released"])
def test_nan_is_refused(kernel: str) -> None:
    target, draft = torch.zeros(2, 2, 9), torch.zeros(2, 1, 9)
    target[1, 1, 4] = float("nan")
    tokens, uniforms = torch.zeros(2, 1, dtype=torch.long), torch.full((2, 2), 0.5, dtype=torch.float64)
    with pytest.raises(InputError, match=r"row 1, position 1: hold NaN"):
        run(kernel, case(target, draft, tokens, uniforms))


def test_a_token_outside_the_vocabulary_gives_no_token() -> None:
    """What CUDA answers, where the wrapper does not look at tokens so as not to wait for them."""
    from kernels.verify import fused_gpu
    from kernels.verify.interface import Round

    tokens, logits = torch.tensor([[9], [-1], [8]]), torch.zeros(3, 2, 9)
    uniforms = torch.full((3, 2), 0.5, dtype=torch.float64)
    given = Round(tokens, (1, 1, 1), logits, logits[:, :1], None, uniforms, PLAIN, PLAIN)
    assert fused_gpu.verify(given).next_token.tolist() == [9, 9, 4]


def test_the_law_is_the_targets() -> None:
    """To 1e-6, from below and above every threshold of the law: acceptance of each token, and each step of both draws.

    Decisions are monotone in the uniforms, so one that is right on both sides of a threshold moves it by less than the gap.
    """
    gap = 1e-7
    generator = torch.Generator().manual_seed(7)
    target, draft = 2 * torch.randn(2, 5, generator=generator), 2 * torch.randn(1, 5, generator=generator)
    target_probs, draft_probs = adjusted_probs(target.double(), PLAIN), adjusted_probs(draft.double(), PLAIN)
    ratio = target_probs[0] / draft_probs[0]
    residual = (target_probs[0] - draft_probs[0]).clamp(min=0)
    refused, kept = int(ratio.argmin()), int(ratio.argmax())
    rows = []
    for side in (-gap, gap):
        rows += [(token, min(1.0, float(ratio[token]) + side), 0.5) for token in range(5)]
        steps = (residual / residual.sum()).cumsum(-1)[:-1], target_probs[1].cumsum(-1)[:-1]
        rows += [(refused, 1 - 1e-9, min(max(float(at) + side, 0.0), 1.0)) for at in steps[0]]
        rows += [(kept, 0.5, float(at) + side) for at in steps[1]]
    tokens, uniforms = torch.tensor([[row[0]] for row in rows]), torch.tensor([row[1:] for row in rows], dtype=torch.float64)
    batch = len(rows)
    expected = reference.verify(target_probs.expand(batch, -1, -1), draft_probs.expand(batch, -1, -1), tokens, None, uniforms)
    found = run("fused", case(target.expand(batch, -1, -1), draft.expand(batch, -1, -1), tokens, uniforms))
    assert found == tuple(part.tolist() for part in expected)
    assert {0, 1} == set(found[0])


def test_interpreted_and_vectorised_agree_on_what_they_report() -> None:
    given = next(iter(random_cases(10, torch.float32, seed=11)))
    ours, theirs = (KERNELS["fused"](*given, backend=backend) for backend in ("triton", "torch"))
    looked_at = ~theirs.target_probs.isnan()
    for name in ("target_probs", "draft_probs"):
        torch.testing.assert_close(getattr(ours, name)[looked_at], getattr(theirs, name)[looked_at], rtol=1e-5, atol=1e-7)
