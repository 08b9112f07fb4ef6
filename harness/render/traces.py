"""SpecDec as its worked examples show it (Xia et al., Table 19): what the drafter proposed and the verifier made of it.

An iteration has two lines, D and V. Both begin with what stood before it; D goes on with the block, V with what became of the
block: the drafts that stand, the verifier's own token at the bifurcation (the first position where a draft does not stand) or
behind the whole block, and its discarded choices after the bifurcation. Nothing is shown behind an end-of-sentence token.
With cap "printed" a block that stands whole is followed by nothing; its rounds count one draft less than stands.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.errors import UsageError
from harness.records import Record
from harness.render.coloured import Decode, Kind, Token, piece

END = "[EOS]"


@dataclass(frozen=True)
class Iteration:
    """One round. ``bifurcation`` is a position in the output, counted from 1; None where the whole block stands.

    ``choices`` are the verifier's first choices at the drafts' positions and behind them, which D and V show in part.
    """

    drafter: tuple[Token, ...]
    verifier: tuple[Token, ...]
    bifurcation: int | None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trace:
    """One generation, and what it is of."""

    heading: str
    iterations: tuple[Iteration, ...]


@dataclass(frozen=True)
class WorkedExample:
    """The same source by several methods; ``source`` is None where the data at hand does not have it."""

    title: str
    source: str | None
    traces: tuple[Trace, ...]


def trace_of(record: Record, decode: Decode, heading: str) -> Trace:
    """A recorded generation of a rule that notes the verifier's choices (top-1, top-beta)."""
    if record.status != "ok" or record.steps is None or record.tokens is None or not record.steps.choices:
        raise UsageError(f"record {record.example!r}: no verifier's choices are recorded; expected rule top-1 or top-beta")
    end = record.tokens[-1] if record.stop_reason == "eos" else None
    steps, start, iterations = record.steps, 0, []
    for drafted, choices, num_accepted, emitted in zip(
        steps.drafted, steps.choices, steps.num_accepted, steps.emitted, strict=True
    ):
        output = record.tokens[start : start + emitted]
        whole = len(drafted) > 0 and output == drafted  # cap "printed", or an end or limit right behind the last draft
        stood = emitted if whole else min(num_accepted, emitted)
        one = _Round(record.tokens[:start], drafted, choices, stood, emitted, end, decode)
        iterations.append(one.iteration())
        start += emitted
    return Trace(heading, tuple(iterations))


@dataclass(frozen=True)
class _Round:
    """A recorded round; ``stood`` of its drafts entered the output, and with more ``emitted`` a token of the verifier's own."""

    before: list[int]
    drafted: Sequence[int]
    choices: Sequence[int]
    stood: int
    emitted: int
    end: int | None
    decode: Decode

    def iteration(self) -> Iteration:
        known = [self._token(self.before[:offset], token, "before") for offset, token in enumerate(self.before)]
        stands = [self._drafted(offset, self._standing(offset)) for offset in range(self.stood)]
        lost = range(self.stood, len(self.drafted))
        fails = [self._drafted(offset, "rejected" if offset == self.stood < self.emitted else "dropped") for offset in lost]
        bifurcates = self.stood < min(self.emitted, len(self.drafted))
        own = []
        if self.emitted > self.stood:
            own = [self._chosen(self.stood, "corrected" if bifurcates else "bonus")]
            own += [self._chosen(offset, "dropped") for offset in range(self.stood + 1, len(self.choices))]
        position = len(self.before) + self.stood + 1 if bifurcates else None
        choices = tuple(self._chosen(offset, "accepted").text for offset in range(len(self.choices)))
        return Iteration(_to_end([*known, *stands, *fails]), _to_end([*known, *stands, *own]), position, choices)

    def _standing(self, offset: int) -> Kind:
        return "accepted" if self.drafted[offset] == self.choices[offset] else "candidate"

    def _drafted(self, offset: int, kind: Kind) -> Token:
        return self._token([*self.before, *self.drafted[:offset]], self.drafted[offset], kind)

    def _chosen(self, offset: int, kind: Kind) -> Token:
        return self._token([*self.before, *self.drafted[:offset]], self.choices[offset], kind)

    def _token(self, before: Sequence[int], token: int, kind: Kind) -> Token:
        return Token(END if token == self.end else piece(before, token, self.decode), kind)


def _to_end(tokens: Sequence[Token]) -> tuple[Token, ...]:
    ends = [index for index, token in enumerate(tokens) if token.text.endswith(END)]
    return tuple(tokens[: ends[0] + 1] if ends else tokens)


def printed_trace(rows: Sequence[Mapping[str, str]], heading: str) -> Trace:
    """One of the paper's own: rows of its Table 19 in order, words apart by spaces.

    Where D and V part the verifier's token is taken over, and they part at most once an iteration. The colours of the paper's
    print are lost: a draft that was a top-beta candidate only counts as accepted here.
    """
    before: list[str] = []
    iterations = []
    for drafter, verifier in zip(rows[::2], rows[1::2], strict=True):
        drafted, verified = (row["text"].replace(END, f" {END}").split()[len(before) :] for row in (drafter, verifier))
        pairs = zip(drafted, verified, strict=False)
        stood = next((offset for offset, (draft, own) in enumerate(pairs) if draft != own), len(drafted))
        bifurcates = stood < len(drafted)
        dropped: list[Kind] = ["dropped"] * len(verified)
        lost: list[Kind] = ["rejected", *dropped]
        own: list[Kind] = ["corrected" if bifurcates else "bonus", *dropped]
        known: list[tuple[str, Kind]] = [(word, "before") for word in before]
        known += [(word, "accepted") for word in drafted[:stood]]
        iterations.append(
            Iteration(
                _words([*known, *zip(drafted[stood:], lost, strict=False)]),
                _words([*known, *zip(verified[stood:], own, strict=False)]),
                len(before) + stood + 1 if bifurcates else None,
            )
        )
        before += verified[: stood + 1]
    return Trace(heading, tuple(iterations))


def _words(pairs: Sequence[tuple[str, Kind]]) -> tuple[Token, ...]:
    return tuple(Token(f" {word}" if index else word, kind) for index, (word, kind) in enumerate(pairs))
