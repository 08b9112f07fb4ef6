"""Whether a kernel decides as the reference does: random rounds, decision by decision, rounding allowed for where it counts.

``python -m kernels.verify.check --rows 10000`` is what ``make verify-kernels`` runs, in Triton's interpreter.
"""

import argparse
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kernels.verify.bounds import reference_decisions
from kernels.verify.interface import Backend, Proposal, Round, checked
from kernels.verify.reference import Sampling, adjusted_logits, inverse_cdf, verify
from kernels.verify.registry import EXACT, KERNELS, RELEASED
from kernels.verify.sigmoid import DEFAULT, LEAST_SUM, LEAST_WEIGHT, Scaling, warped

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MOST_INSIDE = 0.01  # of rows of up to ONE_TILE tokens, and in proportion beyond
FILTERED = 3  # times as many where filters cut: the mass that a nucleus ends at is known the less the larger V is
FILTERED_EVERY = 25  # one batch of so many has top-k or top-p
WIDE_EVERY = 50  # the last two batches of so many have a vocabulary of several tiles; the last of them has filters too
SIGMOID_ERROR = 8  # of the dtype's spacing: the exponential, and every step of Eq. 5 rounded to the dtype


VOCABULARIES = (2, 3, 5, 17, 63, 64, 100, 127, 257, 500, 777, 1000, 1024)
ONE_TILE = 1024
WIDE = (3000, 9001)
FILTERS: tuple[dict[str, Any], ...] = ({"top_k": 3}, {"top_p": 0.8}, {"top_k": 20, "top_p": 0.9})
WIDE_FILTERS = (FILTERS[0], FILTERS[2])  # most rows of a wide nucleus alone are inside the bound, and show nothing
DRAFTS = (0, 1, 1, 1, 1, 2, 2, 3, 5)
SPREADS = (0.5, 2.0, 6.0)  # standard deviations of the target's logits
NOISES = (0.0, 0.05, 0.5, 2.0)  # and of what the draft's add to them
KINDS = ("logits", "log-sum-exp", "point mass")
Case = tuple[Proposal, Tensor, Sampling, Tensor]  # a batch of rows: what a rule's ``verify`` takes


def random_cases(
    num_rows: int, dtype: torch.dtype, seed: int, filtered_every: int | None = None, batch: int = 10
) -> Iterator[Case]:
    """Batches of ``batch`` rows, ``num_rows`` in all; one batch in ``filtered_every`` has top-k or top-p."""
    generator = torch.Generator().manual_seed(seed)
    for index in range((num_rows + batch - 1) // batch):
        filtered = filtered_every is not None and index % filtered_every == filtered_every - 1
        yield random_case(generator, dtype, min(batch, num_rows - index * batch), filtered, index)


def random_case(generator: torch.Generator, dtype: torch.dtype, batch: int, filtered: bool, index: int) -> Case:
    """One batch; ``index`` walks through the vocabularies so that even a few batches see most of them.

    The last two of WIDE_EVERY batches walk through the wide ones.
    """
    round_number, filters = index // len(VOCABULARIES), FILTERS
    vocab_size, num_draft = VOCABULARIES[index % len(VOCABULARIES)], _pick(generator, DRAFTS)
    if index % WIDE_EVERY >= WIDE_EVERY - 2:
        round_number, filters = index // WIDE_EVERY // len(WIDE), WIDE_FILTERS
        vocab_size = WIDE[index // WIDE_EVERY % len(WIDE)]
    sampling = Sampling(temperature=_pick(generator, (1.0, 1.0, 0.7, 1.3)))
    if filtered:
        num_draft = min(num_draft, 1)
        sampling = Sampling(temperature=sampling.temperature, **filters[round_number % len(filters)])
    return case_at(generator, dtype, batch, vocab_size, num_draft, sampling)


def case_at(
    generator: torch.Generator, dtype: torch.dtype, batch: int, vocab_size: int, num_draft: int, sampling: Sampling
) -> Case:
    """One batch of a given shape: logits of any spread, with ties and masked tokens now and then, and a draft near them."""
    target = _pick(generator, SPREADS) * torch.randn(batch, num_draft + 1, vocab_size, generator=generator)
    draft = target[:, :-1] + _pick(generator, NOISES) * torch.randn(batch, num_draft, vocab_size, generator=generator)
    if _pick(generator, (False, False, True)):
        target, draft = target.round(), draft.round()  # ties
    if vocab_size > 4 and _pick(generator, (False, False, True)):
        masked = torch.rand(vocab_size, generator=generator) < 0.3
        masked[-1] = False
        target, draft = target.masked_fill(masked, float("-inf")), draft.masked_fill(masked.roll(1), float("-inf"))
    return _case(generator, target.to(dtype), draft.to(dtype), sampling, _pick(generator, KINDS))


def _pick(generator: torch.Generator, values: tuple[Any, ...]) -> Any:
    return values[int(torch.randint(len(values), (), generator=generator))]


def _case(generator: torch.Generator, target: Tensor, draft: Tensor, sampling: Sampling, kind: str) -> Case:
    batch, num_draft, _ = draft.shape
    scaled = adjusted_logits(draft, sampling)
    numbers = torch.rand(batch, num_draft, generator=generator, dtype=torch.float64)
    tokens = inverse_cdf(scaled.softmax(-1), numbers) if num_draft else torch.zeros(batch, 0, dtype=torch.long)
    lengths = tuple(torch.randint(num_draft + 1, (batch,), generator=generator).tolist())
    if bool(torch.rand((), generator=generator) < 0.7):
        lengths = (num_draft,) * batch
    uniforms = torch.rand(batch, num_draft + 1, generator=generator, dtype=torch.float64)
    known = scaled.logsumexp(-1) if kind == "log-sum-exp" else None
    proposal = Proposal(tokens, lengths, None if kind == "point mass" else draft, sampling, known)
    return proposal, target, sampling, uniforms


@dataclass(frozen=True)
class Report:
    """Rows in all, rows inside the bound (where a kernel may differ), rows that differ outside of it.

    ``most_inside``: how many may be inside, which depends on the rows' vocabularies and filters.
    """

    kernel: str
    dtype: str
    num_rows: int
    num_inside: int
    num_wrong: int
    most_inside: float = 0.0

    @property
    def passed(self) -> bool:
        """No wrong row; for exact kernels also few enough inside the bound that this means something."""
        few = self.kernel not in EXACT or self.num_inside <= self.most_inside
        return self.num_rows > 0 and self.num_wrong == 0 and few

    def as_text(self) -> str:
        verdict = "green" if self.passed else "RED"
        return f"{self.kernel:17s} {self.dtype:9s} {verdict}: {self.counts()}"

    def counts(self) -> str:
        share = f" ({self.num_inside / self.num_rows:.2%})" if self.num_rows else ""
        return f"{self.num_rows} rows, {self.num_inside} inside the bound{share}, {self.num_wrong} wrong"


def check(
    kernel: str, cases: Iterable[Case], dtype: torch.dtype, backend: Backend | None = None, device: str = "cpu"
) -> Report:
    """Runs a kernel on every case and counts the rows whose decisions differ from the reference's."""
    return deque(running(kernel, cases, dtype, backend, device), maxlen=1).pop()


def running(
    kernel: str, cases: Iterable[Case], dtype: torch.dtype, backend: Backend | None = None, device: str = "cpu"
) -> Iterator[Report]:
    """The counts so far: before the first case, and after each."""
    report = Report(kernel, str(dtype).removeprefix("torch."), 0, 0, 0)
    yield report
    for case in cases:
        report = _counted(report, case, expected_decisions(kernel, case), backend, device)
        yield report


def check_together(
    kernels: Sequence[str], cases: Iterable[Case], dtype: torch.dtype, backend: Backend | None = None, device: str = "cpu"
) -> list[Report]:
    """As ``check``, several kernels on the same cases: the exact ones share the reference's decisions, which take longest."""
    reports = {kernel: Report(kernel, str(dtype).removeprefix("torch."), 0, 0, 0) for kernel in kernels}
    for case in cases:
        known: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
        for kernel, report in reports.items():
            rule = EXACT[0] if kernel in EXACT else kernel
            if rule not in known:
                known[rule] = expected_decisions(kernel, case)
            reports[kernel] = _counted(report, case, known[rule], backend, device)
    return list(reports.values())


def _counted(
    report: Report, case: Case, expected: tuple[Tensor, Tensor, Tensor], backend: Backend | None, device: str
) -> Report:
    arguments = {} if report.kernel == "baseline" else {"backend": backend}
    decisions = KERNELS[report.kernel](*moved(case, device), **arguments)
    num_accepted, next_token, inside = expected
    differs = (decisions.num_accepted.cpu() != num_accepted) | (decisions.next_token.cpu() != next_token)
    return replace(
        report,
        num_rows=report.num_rows + len(inside),
        num_inside=report.num_inside + int(inside.sum()),
        num_wrong=report.num_wrong + int((differs & ~inside).sum()),
        most_inside=report.most_inside + len(inside) * most_inside(case),
    )


def most_inside(case: Case) -> float:
    """The share of a batch's rows that may be inside the bound, or agreement outside of it would mean little."""
    _, target_logits, sampling, _ = case
    is_filtered = sampling.top_k is not None or sampling.top_p is not None
    return MOST_INSIDE * max(1.0, target_logits.shape[-1] / ONE_TILE) * (FILTERED if is_filtered else 1)


def moved(case: Case, device: str) -> Case:
    """Return a batch on another device; its lengths stay on the host."""
    proposal, target_logits, sampling, uniforms = case
    if device != "cpu":
        logits, known = (None if part is None else part.to(device) for part in (proposal.logits, proposal.log_sum_exp))
        proposal = replace(proposal, tokens=proposal.tokens.to(device), logits=logits, log_sum_exp=known)
    return proposal, target_logits.to(device), sampling, uniforms.to(device)


def expected_decisions(kernel: str, case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Accepted counts, next tokens and rows inside the bound, of the reference of this kernel's own rule."""
    round = checked(*case)
    if kernel in EXACT:
        return reference_decisions(round)
    return _expected_sigmoid(round, RELEASED if kernel == "sigmoid-released" else DEFAULT)


def _expected_sigmoid(round: Round, scaling: Scaling) -> tuple[Tensor, Tensor, Tensor]:
    """Algorithm 1 on Eq. 5's sigmoids, in fp64; a row is inside where sigmoids that are a little off decide otherwise."""
    target_logits, draft_logits = warped(round)
    target = scaling.activate(target_logits).double()
    point = torch.zeros_like(target[:, :-1]).scatter_(-1, round.tokens.unsqueeze(-1), 1.0)
    draft = point if draft_logits is None else scaling.activate(draft_logits).double()
    off = SIGMOID_ERROR * torch.finfo(target_logits.dtype).eps
    answers = [_sigmoid_rule(round, target_logits, target * (1 + side * off), draft, scaling) for side in (0, -1, 1)]
    same = [(num == answers[0][0]) & (token == answers[0][1]) for num, token in answers[1:]]
    return *answers[0], ~torch.stack(same).all(0)


def _sigmoid_rule(
    round: Round, target_logits: Tensor, target: Tensor, draft: Tensor, scaling: Scaling
) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor(round.lengths)
    num_accepted, next_token = verify(target, draft, round.tokens, lengths, round.uniforms)
    if not scaling.as_released:
        return num_accepted, next_token
    weights = []
    for entry, accepted in enumerate(num_accepted.tolist()):
        if accepted < round.lengths[entry]:
            left = (target[entry, accepted] - draft[entry, accepted]).clamp(min=0)
            weights.append((left / (left.sum() + LEAST_SUM)).clamp(min=LEAST_WEIGHT))
        else:
            weights.append(target_logits[entry, accepted].double().clamp(min=LEAST_WEIGHT))
    return num_accepted, inverse_cdf(torch.stack(weights), round.uniforms[:, -1])


@contextmanager
def patched_once() -> Iterator[None]:
    """Let Triton's interpreter replace triton.language's functions once; it would at every call of a helper, half its time.

    It runs the kernels on a CPU, for correctness only, thousands of times slower than a device.
    """
    from triton.runtime import interpreter

    original, seen, done = interpreter._patch_lang, set[frozenset[int]](), set[int]()

    class Kept:
        """Stands for what a second patch would have had to undo."""

        def restore(self) -> None:
            pass

    def patch(function: Any) -> Any:
        if id(function) in done:
            return Kept()
        done.add(id(function))
        modules = (interpreter.tl, interpreter.tl.core)
        used = frozenset(id(value) for value in function.__globals__.values() if any(value is module for module in modules))
        if used in seen:
            return Kept()
        seen.add(used)
        original(function)
        return Kept()

    interpreter._patch_lang = patch
    try:
        yield
    finally:
        interpreter._patch_lang = original


def main() -> int:
    """Every kernel in every dtype; exit status 1 where one is red."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10000, help="random rows a dtype and kernel (default: 10000)")
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--backend", choices=("torch", "triton"), default="triton", help="torch: and fused's compiled loop")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    reports = []
    with patched_once() if arguments.backend == "triton" else nullcontext():
        for kernel in arguments.kernels:
            for backend in _backends(kernel, arguments.backend):
                for name in arguments.dtypes:
                    reports.append(_shown(kernel, name, arguments.rows, backend))
                    print(f"{backend:6s} {reports[-1].as_text()}", flush=True)
    red = [report for report in reports if not report.passed]
    print(f"{arguments.backend}: {len(reports) - len(red)} of {len(reports)} checks green")
    return int(bool(red))


def _backends(kernel: str, backend: Backend) -> tuple[Backend, ...]:
    """What decides on a CPU: PyTorch's operations, and for fused the compiled loop too, which must be there to be checked."""
    return ("torch", "native") if (kernel, backend) == ("fused", "torch") else (backend,)


def _shown(kernel: str, dtype: str, num_rows: int, backend: Backend) -> Report:
    """One kernel in one dtype; what is counted so far goes to stderr after each tenth of the rows."""
    shown, cases = 0, random_cases(num_rows, DTYPES[dtype], 0, FILTERED_EVERY)
    for report in running(kernel, cases, DTYPES[dtype], backend):
        tenth = report.num_rows * 10 // num_rows
        if shown < tenth < 10:
            shown = tenth
            print(f"  {kernel} {dtype} {tenth}0 %: {report.counts()}", file=sys.stderr, flush=True)
    return report


if __name__ == "__main__":
    raise SystemExit(main())
