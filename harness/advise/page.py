"""The page of an advice: survival curves with bands, predicted speed by gamma with what was achieved, and the words.

Beside the records, in ``advice/``: a figure (.svg, .png), a page (.html) and all numbers (.json), which the report reads.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.advise.predict import Cell
from harness.advise.recommendation import Answer, choice_of
from harness.measures.statistics import Estimate, Missing
from harness.tables import style
from harness.tables.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ADVICE = "advice"  # the folder beside the records


def write_page(answers: Sequence[Answer], title: str, text: str, folder: Path, name: str) -> Path:
    """Write the figure, the page and the numbers, each whole or not at all; return the page."""
    draw(answers, folder, name)
    document = {"title": title, "text": text, "answers": [as_dict(one) for one in answers]}
    write_whole(folder / f"{name}.json", json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    return write_whole(
        folder / f"{name}.html",
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title></head>\n'
        f'<body style="font-family: sans-serif; max-width: 75em; margin: 2em auto">\n<h1>{escape(title)}</h1>\n'
        f'<img src="{name}.svg" alt="Survival of drafts by place, and speed by gamma" style="max-width: 100%">\n'
        f'<pre style="white-space: pre-wrap">{escape(text)}</pre>\n</body></html>\n',
    )


def as_dict(answer: Answer) -> dict[str, Any]:
    """Return an answer as JSON: every cell, curve and checked prediction; what is refused has its reason."""
    bound = None if answer.pipeline is None else asdict(answer.pipeline)
    if bound is not None and answer.pipeline_reached is not None:
        bound["achieved"] = _result(answer.pipeline_reached)
    return {
        "batch_size": answer.batch_size,
        "choice": choice_of(answer),
        "plain_s_per_token": answer.plain_s,
        "verify_s": {str(count): second for count, second in answer.verify_s.items()},
        "examples": dict(zip(("pilot", "check"), answer.num_examples, strict=True)),
        "refused": answer.refused,
        "ppd_at_most": bound,
        "survival": {name: [one.as_dict() for one in curve] for name, curve in answer.curves.items()},
        "predicted": [_cell(one) for one in answer.cells],
        "intervals_hold_for": answer.num_ran,
        "checked": [
            {
                "method": one.cell.name,
                "predicted": one.cell.speed.as_dict(),
                "achieved": _result(one.achieved),
                "achieved_unseen": _result(one.unseen),
                "off": one.off,
            }
            for one in answer.checked
        ],
    }


def _cell(cell: Cell) -> dict[str, Any]:
    costs = {name: getattr(cell.costs, name) for name in ("ar_s", "begin_s", "draft_s", "verify_s", "rest_s")}
    return {"drafter": cell.drafter.label, "gamma": cell.gamma, "alpha": cell.alpha, **costs, "speedup": cell.speed.as_dict()}


def _result(number: Estimate | Missing) -> dict[str, Any]:
    return {"missing": number.why} if isinstance(number, Missing) else number.as_dict()


def draw(answers: Sequence[Answer], folder: Path, name: str) -> list[Path]:
    """Draw a row of two panels for each batch size."""
    labels = list(dict.fromkeys(label for answer in answers for label in answer.curves))
    colours = {label: style.COLOURS[index % len(style.COLOURS)] for index, label in enumerate(labels)}
    with style.look():
        figure = style.new_figure(9.8, 4.2 * len(answers))
        rows = figure.subplots(len(answers), 2, squeeze=False)
        figure.subplots_adjust(hspace=0.35, wspace=0.25)
        for (left, right), answer in zip(rows, answers, strict=True):
            _survival(left, answer, colours)
            _speed(right, answer, colours)
        handles = [style.legend_line(color=colour, label=style.printable(label)) for label, colour in colours.items()]
        marks = [
            style.legend_line(color="black", ls="none", marker="o", label="achieved"),
            style.legend_line(color="black", ls=":", lw=1, label="plain decoding"),
            style.legend_line(color="black", ls="--", lw=1, label="one alpha (Eq. 1)"),
        ]
        style.legends_beside(figure, rows[0][1], ("drafter", handles), ("", marks))
        style.footnote(
            figure,
            "Bands: 95 % intervals over examples of the pilot, each of its own.\n"
            "Bars: of the check; they hold for all that ran at a batch size at once.",
        )
        return style.save(figure, folder, name)


def _survival(axes: "Axes", answer: Answer, colours: dict[str, str]) -> None:
    for label, curve in answer.curves.items():
        places = range(1, len(curve) + 1)
        axes.plot(places, [one.value for one in curve], color=colours[label])
        _band(axes, places, curve, colours[label])
        alpha = next((cell.alpha for cell in answer.fastest if cell.drafter.label == label), None)
        if alpha is not None:
            axes.plot(places, [alpha**place for place in places], color=colours[label], ls="--", lw=1)
    axes.set(title=f"First j drafts stand, batch {answer.batch_size}", xlabel="j", ylabel="share of rounds", ylim=(0, 1.02))


def _speed(axes: "Axes", answer: Answer, colours: dict[str, str]) -> None:
    for label, colour in colours.items():
        cells = sorted((cell for cell in answer.cells if cell.drafter.label == label), key=lambda cell: cell.gamma)
        gammas = [cell.gamma for cell in cells]
        axes.plot(gammas, [cell.speed.value for cell in cells], color=colour)
        _band(axes, gammas, [cell.speed for cell in cells], colour)
    for one in answer.checked:
        if isinstance(one.achieved, Estimate):
            axes.errorbar(
                [one.cell.gamma], [one.achieved.value], yerr=style.reaches([one.achieved]), marker="o", ls="none", capsize=2,
                color=colours[one.cell.drafter.label],
            )  # fmt: skip
    axes.axhline(1, color="black", lw=1, ls=":")
    axes.set(title=f"Speed over plain decoding, batch {answer.batch_size}", xlabel="gamma", ylabel="times", ylim=(0, None))


def _band(axes: "Axes", places: Sequence[int], values: Sequence[Estimate], colour: str) -> None:
    ends = [(one.value if one.low is None else one.low, one.value if one.high is None else one.high) for one in values]
    axes.fill_between(places, [low for low, _ in ends], [high for _, high in ends], color=colour, alpha=0.15, lw=0)
