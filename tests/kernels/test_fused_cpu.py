"""The fused rule's compiled loop against the fp64 reference and the law that it is to keep; what stands in for it."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from harness.exact.law import largest_deviation
from kernels import native
from kernels.inputs import InputError, NotFiniteError
from kernels.verify import fused, fused_cpu, reference
from kernels.verify.bounds import _Law
from kernels.verify.check import Case, check, random_cases
from kernels.verify.interface import Proposal, Verdict
from kernels.verify.reference import Sampling
from kernels.verify.registry import KERNELS
from methods.speculative import rules
from methods.speculative.rules import ByOperations, KernelRule, Lenience, SpeculativeSampling

DRAWN = Sampling(temperature=1.0)
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INF, NAN = float("inf"), float("nan")


@pytest.fixture(autouse=True)
def _loop(zoo_cache: Path) -> None:
    """Compiled once for all processes of the tests."""
    if fused_cpu.library() is None:
        pytest.skip("no C++ compiler that the loop compiles with")


def case(seed: int, batch: int, num_draft: int, vocab_size: int, sampling: Sampling = DRAWN, kind: str = "logits") -> Case:
    generator = torch.Generator().manual_seed(seed)
    target = 3 * torch.randn(batch, num_draft + 1, vocab_size, generator=generator)
    draft = target[:, :-1] + 0.7 * torch.randn(batch, num_draft, vocab_size, generator=generator)
    numbers = torch.rand(batch, num_draft, generator=generator, dtype=torch.float64)
    tokens = reference.inverse_cdf(reference.adjusted_probs(draft, sampling), numbers)
    uniforms = torch.rand(batch, num_draft + 1, generator=generator, dtype=torch.float64)
    known = draft.logsumexp(-1) if kind == "log-sum-exp" else None
    given = Proposal(tokens, (num_draft,) * batch, None if kind == "point mass" else draft, sampling, known)
    return given, target, sampling, uniforms


def decided(given: Case, backend: str = "native") -> Verdict:
    return KERNELS["fused"](*given, backend=backend)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_rounds(dtype: torch.dtype) -> None:
    report = check("fused", random_cases(600, dtype, seed=1, filtered_every=10), dtype, "native")
    assert report.num_rows == 600
    assert report.passed, report.as_text()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_filtered_rounds(dtype: torch.dtype) -> None:
    report = check("fused", random_cases(300, dtype, seed=2, filtered_every=1), dtype, "native")
    assert report.num_wrong == 0
    assert report.num_inside <= 15  # near-ties of rounded logits at a cut


@pytest.mark.parametrize("kind", ["logits", "log-sum-exp", "point mass"])
@pytest.mark.parametrize("vocab_size", [1, 2, 31, 32, 33, 2047, 2048, 2049, 4097, 33_000])
def test_vocabularies_around_whole_tiles(vocab_size: int, kind: str) -> None:
    report = check("fused", [case(vocab_size, 30, 2, vocab_size, kind=kind)], torch.float32, "native")
    assert report.num_wrong == 0
    assert report.num_inside <= 6  # of 30: the bound grows with the vocabulary


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, top_k=1),
        Sampling(temperature=0.7, top_k=50),
        Sampling(temperature=1.0, top_k=300),  # more than there are blocks
        Sampling(temperature=1.0, top_k=100_000),
        Sampling(temperature=1.0, top_p=0.3),
        Sampling(temperature=5.0, top_p=0.99),  # a nucleus larger than what is looked at first
        Sampling(temperature=1.3, top_k=40, top_p=0.9),
    ],
    ids=str,
)
def test_filters_of_large_vocabularies(sampling: Sampling) -> None:
    """In fp64, whose bound leaves no cut undecided."""
    for vocab_size in (70, 5000):
        given, target, *rest = case(3, 30, 2, vocab_size, sampling)
        given = (replace(given, logits=given.logits.double()), target.double(), *rest)
        report = check("fused", [given], torch.float64, "native")
        assert (report.num_wrong, report.num_inside) == (0, 0)


@pytest.mark.parametrize("sampling", [{"top_k": 3}, {"top_k": 9}, {"top_p": 0.6}, {"top_k": 4, "top_p": 0.7}], ids=str)
def test_filters_keep_what_transformers_keeps(sampling: dict) -> None:
    """With ties at the cut, masked tokens and -0: what can be drawn is what topk and a stable sort leave."""
    laws = Sampling(temperature=1.0, **sampling)
    logits = (2 * torch.randn(3, 1, 9, generator=torch.Generator().manual_seed(3))).round()
    logits[0, 0, :6], logits[1, 0, 2], logits[2, 0, :3] = 1.0, -INF, -0.0
    uniforms = torch.linspace(0, 1 - 1e-9, 2001, dtype=torch.float64).unsqueeze(-1)
    for row in logits:
        nothing = Proposal.nothing(len(uniforms), laws, torch.device("cpu"))
        drawn = decided((nothing, row.expand(len(uniforms), 1, 9), laws, uniforms)).next_token
        assert torch.equal(drawn.unique(), reference.adjusted_probs(row[0], laws).nonzero().squeeze(-1))


@pytest.mark.parametrize("sampling", [DRAWN, Sampling(temperature=0.7, top_p=0.8), Sampling(temperature=1.0, top_k=3)], ids=str)
def test_the_law_is_the_targets(sampling: Sampling) -> None:
    generator = torch.Generator().manual_seed(2)
    target, draft = (2 * torch.randn(n, 5, generator=generator, dtype=torch.float64) for n in (3, 2))
    rule = KernelRule("fused", backend="native")
    assert largest_deviation(rule, target, draft, sampling) < 1e-6
    assert largest_deviation(rule, target, [1, 4], sampling) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_probabilities_are_within_the_bounds_errors(dtype: torch.dtype) -> None:
    """Every token of rows that span 70 nats and more, one drafted token at a time; the loop's own exponential is part of it."""
    generator = torch.Generator().manual_seed(0)
    unit = 2.0**-53 if dtype == torch.float64 else 2.0**-24
    for spread, temperature in ((1, 1.0), (4, 1.0), (15, 0.7)):
        sampling = Sampling(temperature=temperature)
        logits = spread * torch.randn(1, 1, 3000, generator=generator, dtype=dtype)
        law = _Law(logits, sampling, unit)
        given = Proposal(torch.arange(3000).unsqueeze(-1), (1,) * 3000, None, DRAWN)
        uniforms = torch.zeros(3000, 2, dtype=torch.float64)
        found = decided((given, logits.expand(3000, 2, -1), sampling, uniforms)).target_probs[:, 0].double()
        error = ((found - law.probs[0, 0]) / law.probs[0, 0]).abs()
        seen = law.probs[0, 0] > 1e-30
        assert int(seen.sum()) > 1000
        assert bool((error <= law.each[0, 0] + law.common[0, 0])[seen].all())


def test_it_reports_what_pytorchs_operations_report() -> None:
    for given in random_cases(60, torch.float32, seed=11, filtered_every=6):
        ours, theirs = decided(given), decided(given, "torch")
        for name in ("target_probs", "draft_probs"):
            mine, other = getattr(ours, name), getattr(theirs, name)
            assert mine.dtype == other.dtype
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-7, equal_nan=True)


def test_rows_behind_the_first_rejection_are_not_read() -> None:
    """They are NaN here; with the draft's log-sum-exp its rows are looked at for the residual and the drafted tokens alone."""
    given, target, sampling, uniforms = case(0, 40, 4, 50, kind="log-sum-exp")
    expected = decided((given, target, sampling, uniforms))
    draft = given.logits.clone()
    for entry, accepted in enumerate(expected.num_accepted.tolist()):
        target[entry, accepted + 1 :] = NAN
        kept = draft[entry].gather(-1, given.tokens[entry].unsqueeze(-1))
        draft[entry, [position for position in range(4) if position != accepted]] = NAN
        draft[entry].scatter_(-1, given.tokens[entry].unsqueeze(-1), kept)
    found = decided((replace(given, logits=draft), target, sampling, uniforms))
    for name in ("num_accepted", "next_token", "target_probs", "draft_probs"):
        assert torch.equal(getattr(found, name).nan_to_num(7), getattr(expected, name).nan_to_num(7))
    assert set(expected.num_accepted.tolist()) >= {0, 1, 2, 3}
    assert torch.equal(~found.target_probs.isnan(), torch.arange(4) <= expected.num_accepted.unsqueeze(-1))


@pytest.mark.parametrize("sampling", [DRAWN, Sampling(temperature=1.0, top_k=4), Sampling(temperature=1.0, top_p=0.9)], ids=str)
@pytest.mark.parametrize("spoil", [lambda row: row[3].fill_(NAN), lambda row: row.fill_(NAN), lambda row: row[3].fill_(INF)])
@pytest.mark.parametrize("side", ["target", "draft"])
def test_what_is_not_finite_is_refused_as_by_pytorchs_operations(
    side: str, spoil: Callable[[Tensor], object], sampling: Sampling
) -> None:
    given, target, sampling, uniforms = case(5, 2, 1, 9, sampling)
    spoil(target[1, 0] if side == "target" else given.logits[1, 0])
    for backend in ("native", "torch"):
        with pytest.raises(NotFiniteError, match=r"logits of row 1, position 0: hold NaN, \+inf or nothing but -inf"):
            decided((given, target, sampling, uniforms), backend)


def test_a_row_of_nothing_but_minus_infinity_is_refused() -> None:
    nothing = Proposal.nothing(1, DRAWN, torch.device("cpu"))
    with pytest.raises(NotFiniteError, match="row 0, position 0"):
        decided((nothing, torch.full((1, 1, 3000), -INF), DRAWN, torch.zeros(1, 1)))


def test_edges() -> None:
    """Equal models accept all; a token that the target never emits is refused at uniform 0, and none of weight 0 is drawn."""
    given, target, sampling, uniforms = case(6, 4, 2, 33)
    equal = replace(given, logits=target[:, :2].clone())
    assert decided((equal, target, sampling, uniforms.fill_(0.99999))).num_accepted.tolist() == [2] * 4
    target = torch.tensor([[[-INF, 0.0, 0.0, -INF], [-INF, -INF, 0.0, -INF]]]).repeat(3, 1, 1)
    draft = torch.tensor([[[0.0, -INF, -INF, -INF]]]).repeat(3, 1, 1)
    uniforms = torch.tensor([[0.0, 0.0], [0.0, 1 - 2.0**-53], [0.5, 0.4999]], dtype=torch.float64)
    found = decided((Proposal(torch.zeros(3, 1, dtype=torch.long), (1,) * 3, draft, DRAWN), target, DRAWN, uniforms))
    assert (found.num_accepted.tolist(), found.next_token.tolist()) == ([0, 0, 0], [1, 2, 1])


def test_where_no_residual_is_left_the_target_is_drawn_from() -> None:
    """The draft equals the target, and a log-sum-exp that is too small makes it look larger: all weights are 0."""
    given, target, sampling, _ = case(7, 1, 1, 40)
    uniforms = torch.tensor([[1.0, 0.25]], dtype=torch.float64)
    known = target[:, :1].logsumexp(-1) - 0.5
    found = decided((replace(given, logits=target[:, :1], log_sum_exp=known), target, sampling, uniforms))
    assert int(found.num_accepted) == 0
    assert int(found.next_token) == int(reference.inverse_cdf(target[0, 0].softmax(-1), uniforms[0, 1]))


def test_half_precision_is_read_without_the_compilers_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its numbers. Fault: g++ before 12 (on ARM before 13) does not know _Float16, and nothing was compiled there."""
    source = tmp_path / "widened.cpp"
    source.write_text(
        f'''#include "{fused_cpu.SOURCE.with_name("laws.h")}"
        extern "C" void widen(const laws::Float16* from, long count, float* to) {{
          for (long i = 0; i < count; i++) to[i] = laws::number(from[i]);
        }}''',
        encoding="utf8",
    )
    halves = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    for more in ((), ("-U__FLT16_MANT_DIG__",)):
        monkeypatch.setattr(native, "ALWAYS", (*native.ALWAYS, *more))
        library, found = native.library.__wrapped__(source), torch.empty(2**16)
        assert library is not None
        library.widen(ctypes.c_void_p(halves.data_ptr()), ctypes.c_long(2**16), ctypes.c_void_p(found.data_ptr()))
        assert torch.equal(found.nan_to_num(nan=7e4), halves.float().nan_to_num(nan=7e4))


def test_a_handed_over_log_sum_exp_is_as_good_as_the_row() -> None:
    """Fault: at a low temperature it is large, and rounded to fp32 it moved a draft's probability by up to 0.1 %."""
    cold = Sampling(temperature=0.001)
    draft = 20 + 0.001 * torch.randn(1, 4, 500, generator=torch.Generator().manual_seed(3))
    known = (draft * (1 / cold.temperature)).double().logsumexp(-1)  # scaled in fp32, as the loop does
    uniforms = torch.zeros(1, 5, dtype=torch.float64)  # every draft stands, and so is looked at
    found, expected = (
        decided((Proposal(draft.argmax(-1), (4,), draft, cold, sums), draft[:, [0, 1, 2, 3, 3]], cold, uniforms)).draft_probs
        for sums in (known, None)
    )
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=0)


def test_rows_may_lie_anywhere_and_dtypes_may_differ() -> None:
    generator = torch.Generator().manual_seed(5)
    wide = torch.randn(2, 5, 2 * 63, generator=generator)
    target, draft = wide[:1, ::2, :63].expand(4, -1, -1), wide[:1, 1:3, 63:].expand(4, -1, -1)
    tokens, uniforms = torch.tensor([[1, 2]] * 4), torch.rand(4, 3, generator=generator, dtype=torch.float64)
    expected = decided((Proposal(tokens, (2,) * 4, draft.contiguous(), DRAWN), target.contiguous(), DRAWN, uniforms))
    for change in (lambda rows: rows, lambda rows: rows.mT.contiguous().mT, lambda rows: rows.double()):
        found = decided((Proposal(tokens, (2,) * 4, change(draft), DRAWN), target, DRAWN, uniforms))
        assert torch.equal(found.num_accepted, expected.num_accepted)
        assert torch.equal(found.next_token, expected.next_token)


GREEDY = Sampling(temperature=0.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocab_size", [1, 2, 9, 255, 256, 257, 1000])
def test_greedy_verdicts_are_those_of_torchs_argmax(dtype: torch.dtype, vocab_size: int) -> None:
    """Rounded logits tie often; some rows are -inf, some hold NaN or +inf; lengths differ, and rows lie anywhere."""
    generator = torch.Generator().manual_seed(vocab_size)
    for trial in range(40):
        batch, num_draft = 1 + trial % 5, trial % 4
        target = (2 * torch.randn(batch, num_draft + 1, vocab_size, generator=generator)).round().to(dtype)
        for value, place in ((NAN, trial), (INF, 3 * trial), (-INF, 7 * trial)):
            target.view(-1, vocab_size)[place % (batch * (num_draft + 1)), place % vocab_size :: 3 + trial % 2] = value
        target = target if trial % 3 else target.mT.contiguous().mT
        best = target.argmax(-1)
        tokens = torch.where(torch.rand(batch, num_draft, generator=generator) < 0.7, best[:, :-1], vocab_size - 1)
        lengths = tuple(torch.randint(0, num_draft + 1, (batch,), generator=generator).tolist())
        given = Proposal(tokens.int() if trial % 7 == 0 else tokens, lengths, None, DRAWN)
        ours, theirs = SpeculativeSampling(), ByOperations()
        uniforms = torch.zeros(batch, num_draft + 1, dtype=torch.float64)
        found, expected = (rule.verify(given, target, GREEDY, uniforms) for rule in (ours, theirs))
        for name in ("num_accepted", "next_token", "target_probs", "draft_probs"):
            torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=0, atol=0, check_dtype=False)


def test_a_greedy_round_whose_shapes_do_not_agree_is_refused() -> None:
    """The call reads what it is told of, whatever lies there."""
    given, target, _, uniforms = case(1, 2, 3, 9, kind="point mass")
    for spoiled, logits, numbers in (
        (given, target[:, :-1], uniforms),
        (given, target[:1], uniforms),
        (replace(given, lengths=(3, 4)), target, uniforms),
        (replace(given, lengths=(3,)), target, uniforms),
    ):
        with pytest.raises(InputError, match="expected"):
            SpeculativeSampling.verify.__wrapped__(SpeculativeSampling(), spoiled, logits, GREEDY, numbers)


@pytest.mark.parametrize("lenience", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("kind", ["logits", "log-sum-exp", "point mass"])
def test_lenience_decides_as_the_reference_does(lenience: float, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In fp64, where rounding turns no decision over; lenience other than 1 changes some."""
    given, target, sampling, uniforms = case(12, 200, 3, 40, kind=kind)
    given = replace(given, logits=None if given.logits is None else given.logits.double())
    given = replace(given, log_sum_exp=given.logits.logsumexp(-1) if kind == "log-sum-exp" else None)
    found = Lenience(lenience).verify(given, target.double(), sampling, uniforms)
    strict = SpeculativeSampling().verify(given, target.double(), sampling, uniforms)
    monkeypatch.setattr(rules, "_library", lambda logits: None)
    expected = Lenience(lenience).verify(given, target.double(), sampling, uniforms)
    assert torch.equal(found.num_accepted, expected.num_accepted)
    assert torch.equal(found.next_token, expected.next_token)
    assert torch.equal(found.num_accepted, strict.num_accepted) == (lenience == 1)


def test_the_loop_decides_by_default_and_the_operations_are_audited_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    for name, module in (("loop", rules.fused_cpu), ("operations", rules.reference)):
        decide = module.verify
        monkeypatch.setattr(
            module, "verify", lambda *given, name=name, decide=decide, **more: calls.append(name) or decide(*given, **more)
        )
    rule, given = SpeculativeSampling(), case(2, 2, 3, 9)
    [other] = rule.elsewhere(torch.device("cpu"))
    for one in (rule, other):
        one.verify(*given)
    assert calls == ["loop", "operations"]
    assert other.elsewhere(torch.device("cpu")) == rule.elsewhere(torch.device("cuda")) == []
    assert OfAPlugIn().elsewhere(torch.device("cpu")) == [], "it decides in a way of its own"


@dataclass(frozen=True)
class OfAPlugIn(SpeculativeSampling):
    """Fault: a copy of it was changed, which it does not allow."""

    number: int = 1

    def verify(self, proposal: Proposal, target_logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Verdict:
        return super().verify(proposal, target_logits, sampling, uniforms)


@pytest.mark.parametrize("kind", ["logits", "log-sum-exp", "point mass"])
def test_the_rule_looks_at_all_drafts_as_the_operations_do(kind: str) -> None:
    """Behind a rejection, too: what both models gave them tells how many would have stood. Ragged rows end where they end."""
    given, target, sampling, uniforms = case(21, 60, 4, 50, kind=kind)
    given = replace(given, lengths=tuple(index % 5 for index in range(60)))
    found, expected = (rule.verify(given, target, sampling, uniforms) for rule in (SpeculativeSampling(), ByOperations()))
    inside = torch.arange(4) < torch.tensor(given.lengths).unsqueeze(-1)
    assert int((torch.tensor(given.lengths) - found.num_accepted > 1).sum()) > 5
    for name in ("target_probs", "draft_probs"):
        torch.testing.assert_close(getattr(found, name)[inside], getattr(expected, name)[inside], rtol=1e-5, atol=1e-8)
        assert getattr(found, name)[~inside].isnan().all()


def test_a_greedy_draft_is_a_point_mass_on_what_it_drafted() -> None:
    """By both ways, also where that is not its own likeliest token."""
    draft = torch.tensor([[[2.0, 0.0, 1.0]]])
    given = Proposal(torch.tensor([[2]]), (1,), draft, GREEDY)
    target, uniforms = torch.tensor([[[0.0, 0.0, -2.0], [0.0, 0.0, 0.0]]]), torch.tensor([[0.9, 0.6]], dtype=torch.float64)
    found, expected = (rule.verify(given, target, DRAWN, uniforms) for rule in (SpeculativeSampling(), ByOperations()))
    assert (found.num_accepted.tolist(), found.next_token.tolist()) == ([0], [1])
    assert torch.equal(found.num_accepted, expected.num_accepted)
    assert torch.equal(found.next_token, expected.next_token)


@pytest.mark.parametrize(("batch", "vocab_size"), [(12, 3000), (1, 40000)])
def test_the_number_of_threads_changes_nothing(batch: int, vocab_size: int) -> None:
    """Threads share the entries of a batch, or each row of a single one."""
    given = case(8, batch, 3, vocab_size)
    alone = decided(given)
    torch.set_num_threads(2)
    try:
        together = decided(given)
    finally:
        torch.set_num_threads(1)
    for name in ("num_accepted", "next_token", "target_probs", "draft_probs"):
        assert torch.equal(getattr(alone, name).nan_to_num(7), getattr(together, name).nan_to_num(7))


def test_without_a_compiler_pytorchs_operations_decide_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """Said once a process, in one line; asked for by name the loop is refused."""
    given = case(9, 30, 3, 500)
    expected = decided(given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "")
        patch.delenv("CXX", raising=False)
        native.library.cache_clear()
        for _ in range(2):
            found = KERNELS["fused"](*given)
        assert fused.decided_by() == "PyTorch's operations"
        with pytest.raises(InputError, match="backend 'native': nothing compiled the loop"):
            decided(given)
    native.library.cache_clear()
    assert fused.decided_by() == "the compiled loop"
    assert torch.equal(found.num_accepted, expected.num_accepted)
    assert torch.equal(found.next_token, expected.next_token)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("foretoken: note: fused_cpu.cpp is not compiled, torch's operations stand in: no C++ compiler")
