"""Worked examples for a terminal, for Markdown and as a page of their own; colours as in harness.render.coloured.

In the paper's print (Xia et al., Table 19) what stood before is highlighted, bifurcation positions are red blocks, candidates
blue ones, and the verifier's pieces behind a bifurcation are struck out.
"""

import html
from collections.abc import Sequence
from itertools import groupby

from harness.render import coloured
from harness.render.coloured import Kind, Token
from harness.render.traces import Iteration, Trace, WorkedExample

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
_ANSI: dict[Kind, str] = {
    "before": "\x1b[2m",
    "accepted": "\x1b[32m",
    "candidate": "\x1b[36;1m",
    "rejected": "\x1b[41;97m",
    "corrected": "\x1b[44;97m",
    "bonus": "\x1b[35;4m",
    "dropped": "\x1b[2;9m",
}
_MARKS: dict[Kind, tuple[str, str]] = {
    "before": ("", " |"),
    "accepted": ("", ""),
    "candidate": ("[=", "=]"),
    "rejected": ("[-", "-]"),
    "corrected": ("[+", "+]"),
    "bonus": ("[*", "*]"),
    "dropped": ("[~", "~]"),
}


def terminal_examples(examples: Sequence[WorkedExample], colour: bool) -> str:
    """One method below the other; without colour marks stand for it."""
    blocks = [_example(example, colour) for example in examples]
    return "\n\n".join([*blocks, _legend(colour)]) + "\n"


def markdown_examples(examples: Sequence[WorkedExample]) -> str:
    """The same with marks, between fences."""
    blocks = [f"## {example.title}\n\n```text\n{_example(example, colour=False, titled=False)}\n```" for example in examples]
    return "\n\n".join(["", *blocks, f"```text\n{_legend(colour=False)}\n```"]) + "\n"


def html_examples(examples: Sequence[WorkedExample], heading: str) -> str:
    """A page of its own, methods side by side; no script, no outside resource."""
    styles = "".join(f".{kind}{{color:{colour}}}" for kind, colour in COLOURS.items())
    sections = "\n".join(map(_section, examples))
    legend = " &nbsp; ".join(_span(Token(MEANINGS[kind], kind)) for kind in MEANINGS)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f"<title>{html.escape(heading)}</title>\n"
        "<style>body{font:15px/1.6 sans-serif;margin:2em}.pair{display:flex;gap:3em}.pair>div{flex:1;min-width:0}"
        "dl{display:grid;grid-template-columns:max-content 1fr;gap:0 .6em}dd{margin:0;white-space:pre-wrap}dt{color:#777}"
        f"dd.V{{margin-bottom:.7em}}{styles}.before{{background:#fff3c4}}.candidate{{background:#dff1fb;color:#0b6ba8}}"
        ".rejected,.corrected{color:#fff;border-radius:3px}"
        f".rejected{{background:{COLOURS['rejected']}}}.corrected{{background:{COLOURS['corrected']}}}"
        ".dropped{text-decoration:line-through}.bonus{text-decoration:underline}</style>\n"
        f"<h1>{html.escape(heading)}</h1>\n<p>{legend}</p>\n{sections}\n</html>\n"
    )


def summary(trace: Trace) -> str:
    """How many iterations made how many tokens, and where they bifurcated."""
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


def _section(example: WorkedExample) -> str:
    source = "" if example.source is None else f"<p>{html.escape(example.source)}</p>\n"
    traces = "\n".join(map(_column, example.traces))
    return f'<h2>{html.escape(example.title)}</h2>\n{source}<div class="pair">\n{traces}\n</div>'


def _column(trace: Trace) -> str:
    lines = "\n".join(_iteration(number, one) for number, one in enumerate(trace.iterations, start=1))
    heading = f"<h3>{html.escape(trace.heading)}</h3>\n<p>{html.escape(summary(trace))}</p>"
    return f"<div>{heading}\n<dl>\n{lines}\n</dl></div>"


def _iteration(number: int, one: Iteration) -> str:
    drafter, verifier = ("".join(map(_span, tokens)) for tokens in (one.drafter, one.verifier))
    return f'<dt>{number} D</dt><dd class="D">{drafter}</dd>\n<dt>V</dt><dd class="V">{verifier}</dd>'


def _span(token: Token) -> str:
    return f'<span class="{token.kind}" title="{MEANINGS[token.kind]}">{html.escape(token.text)}</span>'
