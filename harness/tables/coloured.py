"""One generation round by round: what was drafted, what stood, what the target put in its place (Leviathan, Figure 1).

Needs a record and a way from ids to text; the colours mean the same in the terminal, on a page and in the figure.
"""

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from harness.core.errors import UsageError
from harness.core.records import Record

Decode = Callable[[Sequence[int]], str]
Kind = Literal["accepted", "rejected", "dropped", "corrected", "bonus", "candidate", "before"]  # the last two: traces only
CONTEXT = 8

# Colour-blind safe (Okabe and Ito); kinds differ in more than colour: rejected is struck out, bonus underlined.
COLOURS: dict[Kind, str] = {
    "accepted": "#009E73",
    "rejected": "#D55E00",
    "dropped": "#999999",
    "corrected": "#0072B2",
    "bonus": "#CC79A7",
}
ANSI: dict[Kind, str] = {
    "accepted": "\x1b[32m",
    "rejected": "\x1b[31;9m",
    "dropped": "\x1b[2;9m",
    "corrected": "\x1b[34;1m",
    "bonus": "\x1b[35;4m",
}
MARKS: dict[Kind, tuple[str, str]] = {
    "accepted": ("", ""),
    "rejected": ("[-", "-]"),
    "dropped": ("[~", "~]"),
    "corrected": ("[+", "+]"),
    "bonus": ("[*", "*]"),
}
MEANINGS: dict[Kind, str] = {
    "accepted": "drafted and accepted",
    "rejected": "drafted and rejected",
    "dropped": "drafted behind a rejection or the end",
    "corrected": "the target's own token after a rejection",
    "bonus": "the target's own token after all drafts stood",
}


@dataclass(frozen=True)
class Token:
    """A piece of text and what became of it."""

    text: str
    kind: Kind


def coloured_rounds(record: Record, decode: Decode) -> list[list[Token]]:
    """The tokens of every round: accepted drafts, rejected and dropped ones, then what the target added."""
    if record.status != "ok" or record.steps is None or record.tokens is None:
        raise UsageError(f"record {record.example!r}: status {record.status}, no rounds to show; choose one that succeeded")
    rounds, start = [], 0
    for drafted, num_accepted, emitted in zip(
        record.steps.drafted, record.steps.num_accepted, record.steps.emitted, strict=True
    ):
        rounds.append(_round(record.tokens, start, drafted, num_accepted, emitted, decode))
        start += emitted
    return rounds


def _round(
    tokens: Sequence[int], start: int, drafted: Sequence[int], num_accepted: int, emitted: int, decode: Decode
) -> list[Token]:
    """A round whose drafts were cut by EOS or the length limit emits none of the target's own, and rejected nothing."""
    stood = min(num_accepted, emitted)
    before = list(tokens[:start])
    out: list[Token] = []
    for offset, token in enumerate(drafted):
        kind: Kind = "accepted" if offset < stood else "rejected" if offset == stood < emitted else "dropped"
        out.append(Token(piece([*before, *drafted[:offset]], token, decode), kind))
    if emitted > stood:
        own: Kind = "corrected" if num_accepted < len(drafted) else "bonus"
        out.append(Token(piece(tokens[: start + stood], tokens[start + stood], decode), own))
    return out


def piece(before: Sequence[int], token: int, decode: Decode) -> str:
    """Return what a token adds to the text. Decoders drop leading spaces and special tokens, so it is read off in context."""
    context = list(before[-CONTEXT:])
    head, whole = decode(context), decode([*context, token])
    text = whole[len(head) :] if context and whole.startswith(head) else decode([token])
    return text.replace("\n", "⏎") or f"⟨{token}⟩"


def to_terminal(record: Record, decode: Decode, colour: bool = True) -> str:
    """A line a round; without colour, marks stand for it: [-rejected-] [~dropped~] [+corrected+] [*bonus*]."""
    rounds = coloured_rounds(record, decode)
    paint = _ansi if colour else _marked
    width = len(str(len(rounds)))
    lines = [f"{number:>{width}}  {''.join(map(paint, tokens))}" for number, tokens in enumerate(rounds, start=1)]
    legend = "  ".join(paint(Token(MEANINGS[kind], kind)) for kind in COLOURS)
    return "\n".join([*lines, "", legend, summary(rounds)]) + "\n"


def _ansi(token: Token) -> str:
    return f"{ANSI[token.kind]}{token.text}\x1b[0m"


def _marked(token: Token) -> str:
    before, after = MARKS[token.kind]
    return f"{before}{token.text}{after}"


def summary(rounds: Sequence[Sequence[Token]]) -> str:
    """Say how many tokens came of how many runs of the target."""
    count = sum(token.kind in ("accepted", "corrected", "bonus") for tokens in rounds for token in tokens)
    return f"{count} tokens in {len(rounds)} runs of the target: {count / max(len(rounds), 1):.2f} tokens a run"


def to_html(record: Record, decode: Decode, heading: str = "A generation, round by round") -> str:
    """Write the rounds as a page."""
    rounds = coloured_rounds(record, decode)
    return page("rounds.html", heading, COLOURS, MEANINGS, rounds=rounds, summary=summary(rounds))


def page(template: str, heading: str, colours: Mapping[Kind, str], meanings: Mapping[Kind, str], **values: Any) -> str:
    """Write a page of its own from one of the templates here; it has no script and no outside resource."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # where a page is written: naming a table needs none

    made = Environment(
        loader=PackageLoader("harness.tables"), undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )

    def span(token: Token) -> str:
        return f'<span class="{token.kind}" title="{meanings[token.kind]}">{html.escape(token.text)}</span>'

    made.filters |= {"text": html.escape, "span": span}
    legend = [Token(meanings[kind], kind) for kind in meanings]
    return made.get_template(template).render(heading=heading, colours=colours, legend=legend, **values)
