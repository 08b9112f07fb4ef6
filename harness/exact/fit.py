"""Goodness of fit: do sampled outputs have the target's law, end to end, through models, caches, drafters and rules?

This finds faults of plumbing (a cache off by one, a law that was not sampled from, a random number used twice), down to a total
variation that each test states. Small biases of a rule are found by ``harness.exact.law``.

Two kinds of tests complement each other. ``fits_of`` tests the token behind each context that was seen often. ``pooled_fits``
tests all contexts at once, for laws so flat that no context is seen often: it turns each token into its place in the cumulative
law, chosen at random within the token's own share (the randomised probability integral transform). That number is uniform and
independent of everything before it if the token has the target's law.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from harness.measures.statistics import halvings
from methods.sampling import Sampling, Uniforms
from methods.types import Generation, Inputs, Method, Session, Stop

FALSE_ALARM = 1e-6
POWER, Z_POWER = 0.9, 1.2816  # Z_POWER is the normal quantile of POWER
MIN_SAMPLES, MAX_CELLS = 50, 16  # of a context; of its law
Sampled = tuple[Inputs, list[Generation]]  # outputs drawn from one prompt (or source, or recording), one per seed
CELLS, SIDE = 8, 4  # equal parts of [0, 1] for one number, and for each of two neighbouring numbers


@dataclass(frozen=True)
class Fit:
    """The result of a goodness-of-fit test.

    ``p_value`` bounds the chance of so bad a fit if the law is kept, for any sample size. ``detectable_tv``: samples at least
    this far from the law (total variation, averaged over contexts by sample) always fail. ``likely_tv``: a sampler whose law is
    at least this far off, in whatever way, is found with a chance of POWER.
    """

    num_samples: int
    divergence: float
    p_value: float
    detectable_tv: float
    likely_tv: float

    def passes(self, false_alarm: float) -> bool:
        return self.p_value > false_alarm


def goodness_of_fit(counts: Sequence[Sequence[int]], laws: Sequence[Sequence[float]], false_alarm: float = FALSE_ALARM) -> Fit:
    """Test counts of tokens, one row per context, against the law of each context.

    The statistic is the sum over contexts of samples times KL(sample, law). Its moment generating function is at most
    ``(1 - t)**-freedom`` (Agrawal 2020, "Concentration of the multinomial in relative entropy"), so by Chernoff's bound
    ``P(statistic >= x) <= (e x / freedom)**freedom exp(-x)``: no approximation, no least count. A context's freedom is
    its number of tokens of positive probability, less one.
    """
    statistic, freedom, total = 0.0, 0, 0
    for row, law in zip(counts, laws, strict=True):
        size = sum(row)
        total += size
        freedom += sum(prob > 0 for prob in law) - 1 if size else 0
        mass = math.fsum(law)
        statistic += sum(_term(count, size, prob / mass) for count, prob in zip(row, law, strict=True) if count)
    critical = _critical(freedom, false_alarm)
    bounds = (critical, _found_with_power(freedom, critical))
    always, likely = (math.sqrt(bound / (2 * total)) if total else math.inf for bound in bounds)
    return Fit(total, statistic, _tail(statistic, freedom), always, likely)


def _term(count: int, size: int, prob: float) -> float:
    return count * math.log(count / (size * prob)) if prob > 0 else math.inf


def _tail(statistic: float, freedom: int) -> float:
    if statistic <= freedom:
        return 1.0
    if freedom == 0 or math.isinf(statistic):
        return 0.0 if statistic > 1e-6 else 1.0
    return math.exp(freedom * (1 + math.log(statistic / freedom)) - statistic)


def _critical(freedom: int, false_alarm: float) -> float:
    """Return the least statistic that fails. By Pinsker, KL >= 2 tv**2, so samples with 2 tv**2 above it surely fail."""
    low, high = float(freedom), freedom + 1e6
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _tail(middle, freedom) > false_alarm else (low, middle)
    return high


def _found_with_power(freedom: int, critical: float) -> float:
    """Return half the noncentrality at which the statistic exceeds ``critical`` with a chance of POWER.

    Twice the statistic is approximately noncentral chi-squared, here replaced by a normal law. Its noncentrality, samples times
    chi-squared distance, is at least ``4 samples tv**2``: equal where half of the law's mass gains what the other loses.
    """

    def is_missed(noncentrality: float) -> bool:
        return freedom + noncentrality - Z_POWER * math.sqrt(2 * (freedom + 2 * noncentrality)) < 2 * critical

    return halvings(is_missed, high=4 * critical + 100.0, steps=60)[1] / 2


def draw_rows(
    method: Method,
    target: Session,
    inputs: Inputs,
    sampling: Sampling,
    seeds: Sequence[int],
    length: int,
    batch: int | None = None,
    uniforms_of: Callable[..., Uniforms] = Uniforms,
) -> Sampled:
    """Draw one output of ``length`` tokens per seed from the single row of ``inputs``, decoding ``batch`` (or all) together."""
    rows: list[Generation] = []
    for start in range(0, len(seeds), batch or len(seeds)):
        some = seeds[start : start + (batch or len(seeds))]
        features = None if inputs.features is None else inputs.features.expand(len(some), -1, -1)
        repeated = Inputs(inputs.prompts * len(some), features)
        uniforms = uniforms_of(some, length, target.device)
        rows += method.generate(target, repeated, sampling, uniforms, Stop(max_new_tokens=length))
    return inputs, rows


def fits_of(
    samples: Sequence[Sampled],
    laws: "Laws",
    num_draft: int,
    num_positions: int,
    false_alarm: float | None = None,
) -> dict[str, Fit]:
    """Test every position and, if rounds draft, every place of the first round and its bonus, on all prompts together.

    A context is the tokens before a token. Contexts seen fewer than MIN_SAMPLES times are left out (how often a context is seen
    does not depend on what follows it). ``false_alarm`` is the level of each test, by default FALSE_ALARM over their number.
    """
    groups = {f"position {place}": _texts(samples, place, lambda row: len(row.tokens)) for place in range(num_positions)}
    for place in range(num_draft + 1) if num_draft else ():
        name = "bonus" if place == num_draft else f"draft {place}"
        groups[name] = _texts(samples, place, lambda row: row.steps[0].emitted)
    level = false_alarm or FALSE_ALARM / len(groups)
    return {name: _fit_group(texts, laws, level) for name, texts in groups.items()}


Text = tuple[Inputs, tuple[int, ...], int]  # a prompt, the tokens behind it, and the one that came next


def _texts(samples: Sequence[Sampled], place: int, reach: Callable[[Generation], int]) -> list[Text]:
    return [
        (inputs, tuple(row.tokens[:place]), row.tokens[place])
        for inputs, rows in samples
        for row in rows
        if min(reach(row), len(row.tokens)) > place
    ]


class Laws:
    """The target's law behind each context, by a separate forward pass. Tokens beyond the likeliest are pooled in one cell."""

    def __init__(self, target: Session, sampling: Sampling) -> None:
        self.target, self.sampling = target, sampling
        self.known: dict[tuple[int, tuple[int, ...]], tuple[list[float], dict[int, int]]] = {}
        self._prompts: list[Inputs] = []  # compared by identity: features have no equality of their own

    def number(self, inputs: Inputs) -> int:
        """Return the number of a prompt, counted in the order of first use."""
        found = next((index for index, one in enumerate(self._prompts) if one is inputs), None)
        if found is None:
            self._prompts.append(inputs)
        return len(self._prompts) - 1 if found is None else found

    def cells(self, inputs: Inputs, context: tuple[int, ...]) -> tuple[list[float], dict[int, int]]:
        """Return the probabilities of the cells (the last pools the other tokens) and the cell of each token that has one."""
        key = (self.number(inputs), context)
        if key not in self.known:
            text = torch.tensor([[*self.target.prefill(inputs), *context]], device=self.target.device)
            probs = self.sampling.probs(self.target.extend(text)[0, -1]).double()
            top = probs.topk(min(MAX_CELLS - 1, len(probs)))
            rest = [] if len(top.values) == len(probs) else [max(0.0, 1 - float(top.values.sum()))]
            own = {token: cell for cell, token in enumerate(top.indices.tolist())}
            self.known[key] = ([*top.values.tolist(), *rest], own)
        return self.known[key]


def _fit_group(texts: Sequence[Text], laws: Laws, false_alarm: float) -> Fit:
    contexts: dict[tuple[int, tuple[int, ...]], tuple[Inputs, list[int]]] = {}
    for inputs, before, token in texts:
        contexts.setdefault((laws.number(inputs), before), (inputs, []))[1].append(token)
    counts, cell_laws = [], []
    for (_, before), (inputs, tokens) in contexts.items():
        if len(tokens) >= MIN_SAMPLES:
            law, own = laws.cells(inputs, before)
            row = [0] * len(law)
            for token in tokens:
                row[own.get(token, len(law) - 1)] += 1
            counts.append(row)
            cell_laws.append(law)
    return goodness_of_fit(counts, cell_laws, false_alarm)


def pooled_fits(
    samples: Sequence[Sampled], target: Session, sampling: Sampling, batch: int, num_draft: int, false_alarm: float
) -> dict[str, Fit]:
    """Test outputs of one length over all contexts: ranks at every position and place of the first round, and neighbours.

    Ranks show too many likely or unlikely tokens. The numbers by id are those that sampling inverted the law with: neighbouring
    positions must be independent, which shows random numbers that are used twice.
    """
    by_rank, by_id, first_round = _uniform_numbers(samples, target, sampling, batch)
    length = by_rank.shape[1]
    found = {"ranks at all positions": evenness(by_rank.flatten(), false_alarm)}
    found |= {f"ranks at position {place}": evenness(by_rank[:, place], false_alarm) for place in range(length)}
    for place in range(1, num_draft + 1) if num_draft else ():
        name = "bonus" if place == num_draft else f"draft {place}"
        found[f"ranks of {name}"] = evenness(by_rank[first_round > place, place], false_alarm)
    for place in range(1, length):
        found[f"numbers at {place - 1}, {place}"] = independence(by_id[:, place - 1], by_id[:, place], false_alarm)
    return found


def _uniform_numbers(
    samples: Sequence[Sampled], target: Session, sampling: Sampling, batch: int
) -> tuple[Float[Tensor, "N L"], Float[Tensor, "N L"], Int[Tensor, "N"]]:
    """Return each token's place in its law by rank and by id, and how many tokens the first round of each output emitted."""
    generator = torch.Generator().manual_seed(0)
    length = max(len(row.tokens) for _, rows in samples for row in rows)
    places, first = [], []
    for inputs, drawn in samples:
        rows = [row for row in drawn if len(row.tokens) == length]
        for start in range(0, len(rows), batch):
            some = rows[start : start + batch]
            tokens = torch.tensor([row.tokens for row in some])
            probs = sampling.probs(_logits(target, inputs, tokens)).double().cpu()
            places.append(torch.stack(places_of(probs, tokens, generator)))
            first += [row.steps[0].emitted for row in some]
    by_rank, by_id = torch.cat(places, 1)
    return by_rank, by_id, torch.tensor(first)


def places_of(
    probs: Float[Tensor, "*batch V"], tokens: Int[Tensor, "*batch"], generator: torch.Generator
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """Return where tokens lie in their laws, ordered by rank and by id: both uniform if they were drawn from these laws."""
    spread = torch.rand(tokens.shape, dtype=torch.float64, generator=generator)
    own = probs.gather(-1, tokens.unsqueeze(-1))
    likelier = torch.where(probs > own, probs, 0.0).sum(-1)
    tied = torch.where(probs == own, probs, 0.0)
    before = tied.cumsum(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - own.squeeze(-1)
    below = probs.cumsum(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - own.squeeze(-1)
    total = probs.sum(-1)
    return (likelier + before + spread * own.squeeze(-1)) / total, (below + spread * own.squeeze(-1)) / total


def evenness(numbers: Float[Tensor, "N"], false_alarm: float) -> Fit:
    """Test whether numbers are uniform on [0, 1], by counts in CELLS equal parts."""
    counts = torch.bincount((numbers.clamp(0, 1 - 1e-12) * CELLS).long(), minlength=CELLS)
    return goodness_of_fit([counts.tolist()], [[1 / CELLS] * CELLS], false_alarm)


def independence(first: Float[Tensor, "N"], second: Float[Tensor, "N"], false_alarm: float) -> Fit:
    """Test whether pairs of numbers are uniform on the unit square, by counts in SIDE * SIDE equal parts."""
    cells = (torch.stack((first, second)).clamp(0, 1 - 1e-12) * SIDE).long()
    counts = torch.bincount(cells[0] * SIDE + cells[1], minlength=SIDE**2)
    return goodness_of_fit([counts.tolist()], [[SIDE**-2] * SIDE**2], false_alarm)


def stream_fits(uniforms: Uniforms, false_alarm: float) -> dict[str, Fit]:
    """Test that the numbers of drafts, acceptances and last tokens are independent, as methods read them.

    Of two streams at equal and neighbouring positions, and of each stream at neighbouring positions, rows and levels.
    """
    places = range(uniforms.length)
    rows = len(uniforms.seeds)

    def read(own: Uniforms) -> dict[str, Float[Tensor, "B length"]]:
        verify = torch.stack([own.verify([place] * rows, 1) for place in places], 1)
        draft = torch.cat([own.draft([place] * rows, 1) for place in places], 1)
        return {"draft": draft.cpu(), "acceptance": verify[..., 0].cpu(), "last token": verify[..., 1].cpu()}

    streams, nested, found = read(uniforms), read(uniforms.nested()), dict[str, Fit]()

    def test(name: str, first: Tensor, second: Tensor) -> None:
        found[f"numbers of {name}"] = independence(first.flatten(), second.flatten(), false_alarm)

    for one, own in streams.items():
        test(f"{one} at t, t + 1", own[:, :-1], own[:, 1:])
        test(f"{one} in rows r, r + 1", own[:-1], own[1:])
        test(f"{one}, nested or not", own, nested[one])
        for other, theirs in list(streams.items())[: list(streams).index(one)]:
            test(f"{other} and {one} at t", theirs, own)
            test(f"{other} at t, {one} at t + 1", theirs[:, :-1], own[:, 1:])
            test(f"{one} at t, {other} at t + 1", own[:, :-1], theirs[:, 1:])
    return found


@torch.inference_mode()
def _logits(target: Session, inputs: Inputs, tokens: Tensor) -> Float[Tensor, "B L V"]:
    features = None if inputs.features is None else inputs.features.expand(len(tokens), -1, -1)
    pending = target.prefill(Inputs(inputs.prompts * len(tokens), features))
    text = torch.cat((torch.tensor(pending).unsqueeze(1), tokens[:, :-1]), 1)
    return target.extend(text.to(target.device))
