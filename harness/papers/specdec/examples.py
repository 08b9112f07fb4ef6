"""SpecDec's worked examples (Xia et al., Table 19): the block that was drafted, and what the verifier made of it, as text.

An iteration has two lines, D and V. Both begin with what stood before it; D goes on with the block, V with what became of the
block: the drafts that stand, the verifier's own token at the bifurcation (the first position where a draft does not stand) or
behind the whole block, and its discarded choices after the bifurcation. Nothing is shown behind an end-of-sentence token.
With cap "printed" a block that stands whole is followed by nothing; its rounds count one draft less than stands.

Examples are written for a terminal, for Markdown and as a page; colours as in harness.tables.coloured. In the paper's print
what stood before is highlighted, bifurcation positions are red blocks, candidates blue ones, and the verifier's pieces behind
a bifurcation are struck out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from harness.core.errors import UsageError
from harness.core.records import Record
from harness.tables import coloured
from harness.tables.coloured import Decode, Kind, Token, piece

END = "[EOS]"


@dataclass(frozen=True)
class Iteration:
    """A round. ``bifurcation`` is a position in the output, counted from 1; None where the whole block stands.

    ``choices`` are the verifier's first choices at the drafts' positions and behind them, which D and V show in part.
    """

    drafter: tuple[Token, ...]
    verifier: tuple[Token, ...]
    bifurcation: int | None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trace:
    """A generation under a heading."""

    heading: str
    iterations: tuple[Iteration, ...]


@dataclass(frozen=True)
class WorkedExample:
    """Traces of several methods for one source; ``source`` is None where the data at hand lacks it."""

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
    """Read a trace of the paper: rows of its Table 19 in order, words apart by spaces.

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


COLOURS: dict[Kind, str] = coloured.COLOURS | {"candidate": "#56B4E9", "before": "#333333"}
MEANINGS: dict[Kind, str] = {
    "before": "from earlier iterations",
    "accepted": "drafted, and the verifier's first choice",
    "candidate": "drafted, and good enough: among its top beta, within tau",
    "rejected": "bifurcation: the draft that does not stand",
    "corrected": "the verifier's own token there",
    "bonus": "the verifier's own token behind a whole block",
    "dropped": "discarded",
}
_ANSI: dict[Kind, str] = coloured.ANSI | {
    "before": "\x1b[2m",
    "candidate": "\x1b[36;1m",
    "rejected": "\x1b[41;97m",
    "corrected": "\x1b[44;97m",
}
_MARKS: dict[Kind, tuple[str, str]] = coloured.MARKS | {"before": ("", " |"), "candidate": ("[=", "=]")}


def terminal_examples(examples: Sequence[WorkedExample], colour: bool) -> str:
    """Write the methods below each other, with colours or with marks in their place."""
    blocks = [_example(example, colour) for example in examples]
    return "\n\n".join([*blocks, _legend(colour)]) + "\n"


def markdown_examples(examples: Sequence[WorkedExample]) -> str:
    """Write the examples with marks, between fences."""
    blocks = [f"## {example.title}\n\n```text\n{_example(example, colour=False, titled=False)}\n```" for example in examples]
    return "\n\n".join(["", *blocks, f"```text\n{_legend(colour=False)}\n```"]) + "\n"


def html_examples(examples: Sequence[WorkedExample], heading: str) -> str:
    """Write a page with the methods side by side."""
    return coloured.page("examples.html", heading, COLOURS, MEANINGS, examples=examples, summary=summary)


def summary(trace: Trace) -> str:
    """Count tokens and iterations, and name the positions of bifurcations."""
    emitted = sum(token.kind not in ("before", "dropped") for one in trace.iterations for token in one.verifier)
    places = [str(one.bifurcation) for one in trace.iterations if one.bifurcation is not None]
    where = f"bifurcations at {', '.join(places)}" if places else "no bifurcation"
    return f"{emitted} tokens in {len(trace.iterations)} iterations, {where}"


def _example(example: WorkedExample, colour: bool, titled: bool = True) -> str:
    lines = [example.title] if titled else []
    lines += [f"source: {example.source}"] if example.source is not None else []
    for trace in example.traces:
        lines += ["", f"{trace.heading}: {summary(trace)}"]
        for number, one in enumerate(trace.iterations, start=1):
            lines += [f"{number:>3} D  {_line(one.drafter, colour)}", f"    V  {_line(one.verifier, colour)}"]
    return "\n".join(lines).strip("\n")


def _line(tokens: Sequence[Token], colour: bool) -> str:
    paint = _ansi if colour else _marked
    return "".join(paint("".join(token.text for token in group), kind) for kind, group in _runs(tokens))


def _runs(tokens: Sequence[Token]) -> list[tuple[Kind, list[Token]]]:
    """Neighbours of one kind; top-beta candidates stay apart, as each was decided on."""
    keyed = groupby(enumerate(tokens), lambda pair: (pair[1].kind, pair[0] if pair[1].kind == "candidate" else -1))
    return [(kind, [token for _, token in group]) for (kind, _), group in keyed]


def _ansi(text: str, kind: Kind) -> str:
    return _between(_ANSI[kind], text, "\x1b[0m")


def _marked(text: str, kind: Kind) -> str:
    return _between(_MARKS[kind][0], text, _MARKS[kind][1])


def _between(before: str, text: str, after: str) -> str:
    """The space before a word stays outside its mark."""
    word = text.lstrip(" ")
    return f"{text[: len(text) - len(word)]}{before}{word}{after}"


def _legend(colour: bool) -> str:
    paint = _ansi if colour else _marked
    return "\n".join(paint(meaning, kind) for kind, meaning in MEANINGS.items())
