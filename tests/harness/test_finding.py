"""The finding on top of a table turns with its cells, and says nothing that intervals do not."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from harness.core.checkout import ROOT
from harness.core.record_files import write_environment
from harness.core.settings import Settings
from harness.measures.statistics import Student, ratio_of_examples
from harness.papers import TABLES, get_table
from harness.tables.base import Cell, Table, cell_of
from harness.tables.evidence import Evidence
from harness.tables.finding import by_columns, finding, order

PAIRS = [("T5-XXL (EnDe)", draft) for draft in ("T5-small", "T5-base", "T5-large")]
PAIRS += [("T5-XXL (CNNDM)", draft) for draft in ("T5-small", "T5-base", "T5-large")]
PAIRS += [("GPT-like (97M)", "GPT-like (6M)")]


def alphas(greedy: float, sampled: float, half: float = 0.02) -> list[Cell]:
    """Leviathan's Table 3 with the paper's numbers; the greedy rows of neural pairs have one alpha here, the others another."""
    cells = []
    for cell in get_table(9).cells(Settings(), Evidence(lambda experiment: [])):
        target, draft, temperature = cell.row.split(" / ")
        if cell.column == "alpha" and (target, draft) in PAIRS:
            value = greedy if temperature == "0" else sampled
            cell = replace(cell, measured=value, low=value - half, high=value + half, n=200, status="measured")
        cells.append(cell)
    return cells


def test_a_disagreement_with_the_paper_comes_first() -> None:
    said = finding(get_table(9), alphas(0.5, 0.7))
    assert said.startswith(
        "Alpha is lower at temperature 0 than at 1 for all seven neural pairs here; "
        "one of seven decided neural pairs agrees with the paper."
    )


def test_the_sentence_turns_with_the_cells() -> None:
    assert finding(get_table(9), alphas(0.7, 0.5)).startswith(
        "Alpha is higher at temperature 0 than at 1 for all seven neural pairs here; "
        "six of seven decided neural pairs agree with the paper."
    ), "the paper's GPT-like pair is the other way"


def test_where_intervals_meet_nothing_is_said() -> None:
    said = finding(get_table(9), alphas(0.5, 0.52))
    assert said.startswith(
        "Whether alpha is higher or lower at temperature 0 than at 1 cannot be told for any of seven neural pairs here, "
        "as intervals allow either. "
    )


def test_numbers_without_an_interval_decide_nothing() -> None:
    cells = [replace(cell, low=None, high=None) for cell in alphas(0.5, 0.9)]
    assert "cannot be told for any of seven neural pairs here (seven without an interval)." in finding(get_table(9), cells)
    few = [replace(cell, n=None if cell.n is None else 20) for cell in cells]
    assert "cannot be told for any of seven neural pairs here (seven of too few examples)." in finding(get_table(9), few)
    undeclared = replace(get_table(9), findings=())
    assert finding(undeclared, few) == "Nothing can be said: numbers of fewer than 30 examples have no interval."


CLOSE = Student(0.002, 2)  # of processes that hardly differ


def speeds(low: float, high: float) -> list[Cell]:
    return [
        Cell(
            f"{task} / {draft} / 0",
            "speed",
            3.4,
            (low + high) / 2,
            low,
            high,
            100,
            "x",
            "measured",
            printed="3.4",
            student=CLOSE,
        )
        for task in ("EnDe", "CNNDM")
        for draft in ("T5-small", "T5-base")
    ]


def test_a_bound_is_counted_on_both_sides() -> None:
    assert finding(get_table(8), speeds(0.6, 0.8)) == (
        "Speculative decoding is slower than the target alone for all four pairs here; the paper found the reverse."
    )
    assert finding(get_table(8), speeds(1.2, 1.4)) == (
        "Speculative decoding is faster than the target alone for all four pairs here, as in the paper."
    )
    mixed = [*speeds(1.2, 1.4)[:2], speeds(0.6, 0.8)[2], speeds(0.9, 1.1)[3]]
    assert finding(get_table(8), mixed) == (
        "Speculative decoding is faster than the target alone for two of four pairs here (one slower, one undecided); "
        "two of three decided pairs agree with the paper."
    )


def test_what_the_papers_text_alone_tells_is_not_counted() -> None:
    """Fault: "the paper found it for all one"."""
    first, second = (
        [Cell(f"row {row}", column, None, value, value, value, 100, "", "measured") for row, value in enumerate(values)]
        for column, values in (("a", (3.0, 3.0, 1.0)), ("b", (2.0, 2.0, 2.0)))
    )
    pairs = list(zip(first, second, strict=True))
    said = order(lambda cells: pairs, "speed", "with a", "with b", "rows", told=1)([])
    assert said is not None
    assert said.text == (
        "speed is higher with a than with b for two of three rows here (one lower); "
        "two of three decided rows agree with the paper"
    )


def beside(ours: Sequence[int], papers: Sequence[float | None]) -> str:
    """What ``order`` says of pairs with these signs (0: intervals meet), beside the paper's numbers against its 1.0 of each."""
    cells = [
        (
            Cell(f"row {row}", "a", printed, 2.0 + sign, 1.8 + sign, 2.2 + sign, 100, "", "measured"),
            Cell(f"row {row}", "b", 1.0, 2.0, 1.8, 2.2, 100, "", "measured"),
        )
        for row, (sign, printed) in enumerate(zip(ours, papers, strict=True))
    ]
    said = order(lambda _: cells, "alpha", "at 0", "at 1", "pairs")([])
    assert said is not None
    return said.text.partition(" here")[2] + (" !" if said.contradicts else "")


def test_the_paper_is_compared_pair_by_pair() -> None:
    """Fault: most of the paper's pairs were higher, so one that is lower in both was "the reverse"."""
    assert beside([-1, 0, 0, 0, 0, 0, 0], [0.9, 2, 2, 2, 2, 2, 2]) == " (six undecided); the paper found the same for it"
    assert beside([-1, 0, 0], [2, 0.9, 0.9]) == " (two undecided); the paper found the reverse for it !"
    assert beside([1, 1, -1], [2, 0.9, 2]) == " (one lower); one of three decided pairs agrees with the paper !"
    assert beside([1, 1, 1, 0], [2, 2, 2, 0.9]) == " (one undecided), as in the paper"
    assert beside([1, 1, 1], [2, 2, None]) == "; the paper found the same for both that it has"
    assert beside([1, 1, 1], [2, 1.0, 0.9]) == "; one of two decided pairs that the paper has agrees with it"
    assert beside([1, 1], [None, None]) == ""


def test_what_is_left_out_is_named_and_counted() -> None:
    """All, both: only of a total without refusals and without numbers of too few examples. What nobody ran is not of it."""
    one, two, three, four = speeds(1.2, 1.4)
    few = replace(three, low=None, high=None, n=12)
    refused = replace(four, measured=None, low=None, high=None, n=None, status="refused", note="refused: an arm drifted")
    said = "Speculative decoding is faster than the target alone for {} here{}, as in the paper."
    assert finding(get_table(8), [one, two, few, refused]) == said.format(
        "two of four pairs", " (one of too few examples, one refused)"
    )
    failed = replace(refused, status="failed", note="no output is so long")
    assert finding(get_table(8), [one, two, three, failed]) == said.format("three of four pairs", " (one without a number)")
    for status in ("no model: none in this profile", "impossible: not public", "not run"):
        assert finding(get_table(8), [one, two, replace(refused, status=status, note="")]) == said.format("both pairs", "")
    assert finding(get_table(8), [refused, few]) == (
        "Whether speculative decoding is faster or slower than the target alone cannot be told for either of two pairs here "
        "(one of too few examples, one refused)."
    )


def test_pairs_are_left_out_by_either_of_their_cells() -> None:
    cells = alphas(0.5, 0.7)
    sampled = next(i for i, cell in enumerate(cells) if cell.column == "alpha" and cell.row == "T5-XXL (EnDe) / T5-small / 1")
    cells[sampled] = replace(cells[sampled], low=None, high=None, n=5)
    assert "for six of seven neural pairs here (one of too few examples); one of six" in finding(get_table(9), cells)


def test_comparisons_of_a_sentence_are_decided_at_once() -> None:
    """Fault: of ten comparisons at 95 % each one was "faster" that would be with a chance of one in five."""
    barely, clearly = speeds(1.01, 1.4)[0], speeds(1.19, 1.23)[0]
    assert "is faster than the target alone here" in finding(get_table(8), [barely])
    said = finding(get_table(8), [barely, *(replace(barely, row=f"CNNDM / {n} / 0", low=0.9) for n in range(9))])
    assert (
        "for any of ten pairs here, as intervals allow either once all are compared together (one by one: one faster)" in said
    )
    said = finding(get_table(8), [clearly, *(replace(clearly, row=f"CNNDM / {n} / 0") for n in range(9))])
    assert "is faster than the target alone for all ten pairs here" in said
    ten = [replace(speeds(1.1, 1.32)[0], row=f"CNNDM / {n} / 0") for n in range(10)]
    assert "is faster than the target alone for all ten pairs here" in finding(get_table(8), ten)
    of_replicas = [replace(cell, student=Student(0.11, 2)) for cell in ten]
    assert "cannot be told for any of ten pairs here" in finding(get_table(8), of_replicas), "three replicas, Student's"


def test_replicas_that_lie_close_by_chance_decide_no_sentence() -> None:
    """Fault: where examples spread wider than three replicas, as if 99 and not two degrees of freedom were known of these."""
    close = [replace(speeds(1.1, 1.32)[0], row=f"CNNDM / {n} / 0", student=Student(0.09, 2)) for n in range(10)]
    assert "cannot be told for any of ten pairs here" in finding(get_table(8), close)
    closest = [replace(cell, student=Student(0.01, 2)) for cell in close]
    assert "is faster than the target alone for all ten pairs here" in finding(get_table(8), closest)


def test_examples_of_which_few_hold_all_decide_fewer_sentences() -> None:
    """By hand: 0.21 of a reach of 0.11 is t = 8.2 of two degrees of freedom, a chance of 1.5 %; ten pairs ask for 0.5 %.

    Fault: an interval that two looping outputs spread was carried to small chances as one of a hundred even examples.
    """
    ten = [replace(speeds(1.1, 1.32)[0], row=f"CNNDM / {n} / 0") for n in range(10)]
    for freedom, decided in ((None, True), (30.5, True), (2.9, False)):
        said = finding(get_table(8), [replace(cell, freedom=freedom) for cell in ten])
        assert ("is faster than the target alone for all ten pairs here" in said) == decided
        assert ("cannot be told for any of ten pairs here" in said) != decided


@pytest.mark.parametrize(("outlier", "decided"), [(0.0, True), (30.0, False)])
def test_a_difference_that_one_example_holds_decides_fewer_sentences(outlier: float, decided: bool) -> None:
    """By hand: 1.3 with a reach of about 0.63 is t = 8.9 of two degrees of freedom, a chance of 1.2 %; ten pairs ask for 0.5 %.

    Fault: as many degrees of freedom as examples, whatever one of them holds.
    """
    find = order(by_columns("a", "b"), "speed", "in a", "in b", "rows")
    cells = []
    for column, gain, last in (("a", 2.0, 2.0 + outlier), ("b", 1.0, 1.0)):
        values = [gain + 0.01 * (n % 7) for n in range(99)]
        found = ratio_of_examples([(("arm", str(n)), value, 1.0) for n, value in enumerate([*values, last])])
        assert found is not None
        one = Cell("", column, None, found.value, found.low, found.high, 100, "", "measured", redrawn=found.redrawn)
        cells += [replace(one, row=f"row {row}") for row in range(10)]
    told = find(cells)
    assert told is not None
    assert ("cannot be told" in told.text) != decided


def overlap(lenience: float, gain: float, of: int = 100, arm: str = "arm", row: str = "alpha / Bigram / 1") -> Cell:
    """Alpha that differs far more between examples than between leniences, which change ``of`` of a hundred examples."""
    rows = [((arm, str(n)), 10.0 * (n % 10) / 10 + gain * (1 + n % 2) * (n < of), 10.0) for n in range(100)]
    found = ratio_of_examples(rows, whole=1.0)
    assert found is not None
    cell = Cell(row, f"l = {lenience:g}", None, found.value, found.low, found.high, 100, "", "measured")
    return replace(cell, redrawn=found.redrawn)


def test_numbers_of_the_same_examples_are_paired() -> None:
    """Fault: lenience that can only raise alpha was undecided, as the intervals of two leniences met.

    A second arm of the same examples is compared in the same way. Fault: it was not, as an example was named with its arm.
    """
    strict, lenient = overlap(1, 0.0), overlap(0.1, 0.1)
    assert (lenient.low or 0) < (strict.high or 0)
    assert finding(get_table(11), [strict, lenient]) == "Alpha is higher at lenience 0.1 than at 1 here."
    other_arm = overlap(0.1, 0.1, arm="another")
    assert finding(get_table(11), [strict, other_arm]) == "Alpha is higher at lenience 0.1 than at 1 here."
    others = replace(lenient, redrawn=None)
    assert "cannot be told here, as intervals allow either" in finding(get_table(11), [strict, others])
    assert (
        finding(get_table(11), [strict, overlap(0.1, 0.0)])
        == "Alpha is neither higher nor lower at lenience 0.1 than at 1 here."
    )


def test_times_of_other_code_or_another_machine_are_not_compared() -> None:
    """Fault: one arm of a table was recorded anew with faster code, and the sentence laid the difference to the teachers."""
    old, new = frozenset({"0123 on a Xeon"}), frozenset({"4567 on a Xeon"})
    find = order(by_columns("a", "b"), "speed", "in a", "in b", "rows")
    cells = [
        Cell("row", name, None, value, value - 0.1, value + 0.1, 200, "x", "measured")
        for name, value in (("a", 2.0), ("b", 1.0))
    ]
    for made_by, said in (
        ((old, old), "speed is higher"),
        ((old, frozenset()), "speed is higher"),
        ((old, new), "cannot be told"),
    ):
        told = find([replace(cell, made_by=one) for cell, one in zip(cells, made_by, strict=True)])
        assert told is not None
        assert said in told.text
    assert "cannot be told here (recorded at different commits or on other processors)" in told.text
    few = [replace(cell, low=None, high=None, n=15, made_by=one) for cell, one in zip(cells, (old, new), strict=True)]
    described = order(by_columns("a", "b"), "speed", "in a", "in b", "rows", describes=True)(few)
    assert "recorded at different commits" in described.text, "not even of these examples alone"
    shares = [replace(cell, unit="%", made_by=one) for cell, one in zip(cells, (old, new), strict=True)]
    assert "speed is higher" in find(shares).text, "what no clock decides"


def test_a_cell_knows_who_recorded_it(tmp_path: Path, synthetic: SimpleNamespace, arms: SimpleNamespace) -> None:
    facts = {"commit": "0123", "processor": "a Xeon"}
    digest = write_environment(tmp_path, facts)
    records = [replace(synthetic.plain(arms.plain, name), environment=digest) for name in "ab"]
    evidence = Evidence(lambda experiment: records, folder=tmp_path)
    estimate = ratio_of_examples([(one.unit, 1.0, 2.0) for one in records])
    cell = cell_of(evidence, "row", "a", None, [arms.plain], lambda: estimate)
    assert cell.made_by == {"0123 on a Xeon"}


def test_numbers_of_other_examples_are_compared_by_their_difference() -> None:
    """0.55 [0.50, 0.60] and 0.63 [0.58, 0.68] meet; their difference is 0.08 with half of 0.07. Fault: undecided."""
    for greedy, said in (
        (0.63, "Alpha is higher at temperature 0"),
        (0.61, "Whether alpha is higher or lower at temperature 0"),
    ):
        [cell, other] = [
            Cell(
                f"T5-XXL (EnDe) / T5-small / {temperature}",
                "alpha",
                None,
                value,
                value - 0.05,
                value + 0.05,
                200,
                "",
                "measured",
            )
            for temperature, value in ((0, greedy), (1, 0.55))
        ]
        assert finding(get_table(9), [cell, other]).startswith(said)


def test_a_few_examples_that_differ_decide_nothing() -> None:
    """Four of a hundred examples, all the same way: with a chance of one in eight. Resampling would hold 0 too seldom."""
    for count, is_decided in ((4, False), (8, True)):
        said = finding(get_table(11), [overlap(1, 0.0), overlap(0.1, 0.1, count)])
        assert said.startswith("Alpha is higher") == is_decided


def test_a_sentence_is_wrong_about_as_seldom_as_it_says() -> None:
    """Four drafts, two arms of the same 60 examples, and no difference: any is decided in 5 of 100 tables, 600 of them tried.

    Of 600 an error of 5 % has a standard error of 0.9 %. Percentiles of 60 examples are a little narrow: 5.6 % for one mean.
    """
    rng, wrong = np.random.default_rng(3), 0
    for _ in range(600):
        cells = []
        for draft in ("Unigram", "Bigram", "T5-small (77M)", "T5-base (250M)"):
            hard = rng.normal(5, 2, 60)
            for lenience in (1, 0.1):
                values = hard + rng.normal(0, 1, 60)
                found = ratio_of_examples([((f"at {lenience}", str(n)), value, 10.0) for n, value in enumerate(values)])
                assert found is not None
                place = (f"alpha / {draft} / 1", f"l = {lenience:g}", None)
                cell = Cell(*place, found.value, found.low, found.high, 60, "", "measured", redrawn=found.redrawn)
                cells.append(cell)
        wrong += not finding(get_table(11), cells).startswith("Whether")
    assert 0.02 < wrong / 600 < 0.085


def rates(column: str, one: float, three: float) -> list[Cell]:
    """SpecDec's Table 10: a big and a base pair, each with one teacher and with three."""
    return [
        Cell(
            f"{size}, {teachers} / SpecDec / k = 8",
            column,
            None,
            mean,
            mean - 0.1,
            mean + 0.1,
            150,
            "x",
            "measured",
            student=CLOSE,
        )
        for size in ("big", "base")
        for teachers, mean in (("one", one), ("three", three))
    ]


def test_every_question_of_a_table_is_answered() -> None:
    """Fault: of three the two were shown that decided something."""
    open_ = (
        "hether the speed over greedy decoding is higher or lower with three teachers than with one (one training of each) "
        "cannot be told here, as intervals allow either. "
    )
    assert finding(get_table(20), rates("over greedy", 1.8, 1.85)) == (
        f"W{open_}W{open_}SpecDec is faster than greedy decoding for all four settings here."
    )


def test_times_of_one_process_are_said_to_be_so() -> None:
    alone = [replace(cell, student=None) for cell in speeds(1.2, 1.4)]
    assert finding(get_table(8), alone) == (
        "Speculative decoding is faster than the target alone for all four pairs here, timed in one process, as in the paper."
    )
    assert "for all four pairs here, some timed in one process, as" in finding(
        get_table(8), [*alone[:1], *speeds(1.2, 1.4)[1:]]
    )


def test_times_of_two_recordings_are_not_counted_together() -> None:
    """Fault: a table said that a rule was faster for some settings, by what other code had recorded of them."""
    made = [replace(cell, made_by=frozenset({"old" if row == 3 else "new"})) for row, cell in enumerate(speeds(1.2, 1.4))]
    assert "for three of four pairs here (one recorded at different commits or on other processors)" in finding(
        get_table(8), made
    )


def test_one_training_a_side_says_nothing_of_the_papers_claim() -> None:
    """Fault: drafters of one training each, where ours lay the other way round, were "the reverse" of the paper's."""
    cells = [
        Cell(f"{drafter} / SpecDec, k = 8", "emitted", "not recovered", rate, rate - 0.1, rate + 0.1, 100, "", "measured")
        for drafter, rate in (("big", 3.0), ("base", 4.0))
    ]
    assert finding(get_table(16), cells) == (
        "The number of tokens a round is lower with the big drafter than with the base one (one training of each) here."
    )


def test_what_runaway_outputs_decide_is_said_with_and_without_them() -> None:
    """Fault: alpha was "the reverse" of the paper's by outputs that never end, and the footnotes said the opposite."""
    cells = alphas(0.5, 0.7)
    assert finding(get_table(9), cells).startswith("Alpha is lower at temperature 0 than at 1 for all seven neural pairs here;")
    ended = [
        replace(cell, column="of ended", published=None, measured=value, low=value - 0.02, high=value + 0.02)
        for cell in cells
        if cell.column == "alpha" and cell.measured is not None
        for value in (1.3 - cell.measured,)
    ]
    said = finding(get_table(9), [*cells, *ended])
    assert ". Without outputs that loop or hit the length limit, alpha is higher at temperature 0 than at 1" in said
    assert "Without" not in finding(get_table(9), [*cells, *(replace(one, column="of ended") for one in cells)])


def test_a_number_beside_two_of_ours_that_disagree_decides_nothing() -> None:
    """Fault: the first of them was counted, whatever the second was."""
    pair = (
        Cell("row", "a", 3.0, 3.0, 2.8, 3.2, 100, "", "measured", place="t.csv, line 2, a"),
        Cell("row", "b", 1.0, 2.0, 1.8, 2.2, 100, "", "measured", place="t.csv, line 2, b"),
    )
    other = (replace(pair[0], measured=1.0, low=0.8, high=1.2), pair[1])
    said = order(lambda _: [pair, other], "alpha", "at 0", "at 1", "pairs")([])
    assert said is not None
    assert not said.contradicts
    assert "paper" not in said.text


def scaled(name: str, accepted: float, half: float | None = None, n: int = 15) -> Cell:
    low, high = (None, None) if half is None else (accepted - half, accepted + half)
    return Cell(f"Small.EN / {name}", "WER", None, accepted, low, high, n, "", "measured")


def test_too_few_examples_are_described_and_contradict_nobody() -> None:
    names = [f"top-k 50 / float32 / sigmoid, {mode}" for mode in ("described", "released")]
    few = [scaled(f"{name} / {scale}", value) for name in names for scale, value in (("10", 0.4), ("1000", 0.5))]
    assert finding(get_table(31), few) == (
        "In these examples alone (too few for an interval), the word error rate is higher at scale 1000 than at scale 10 for "
        "both settings here."
    )
    rounded = [replace(cell, row=cell.row.replace("float32", "float16")) for cell in few]
    assert finding(get_table(31), [*few, *rounded]) == finding(get_table(31), few), (
        "logits rounded to fp16 are no other setting"
    )
    printed = [replace(few[0], published=0.41), replace(few[1], published=0.28), *few[2:]]
    assert finding(get_table(31), printed) == finding(get_table(31), few), "neither as in the paper nor its reverse"
    same = [replace(cell, measured=0.4) for cell in few]
    assert finding(get_table(31), same).endswith("cannot be told for either of two settings here (two of too few examples).")
    enough = [replace(cell, n=40, low=(cell.measured or 0) - 0.01, high=(cell.measured or 0) + 0.01) for cell in few]
    assert finding(get_table(31), enough).startswith("The word error rate is higher at scale 1000 than at scale 10 for both")


def test_the_papers_order_of_the_decoders_is_contradicted_first() -> None:
    cells = [
        Cell("one after the other", "NAT decoder", "not recovered", 18.8, 18.4, 19.2, 100, "%", "measured"),
        Cell("one after the other", "AT decoder", "not recovered", 69.5, 68.6, 70.5, 100, "%", "measured"),
        Cell("one for both", "gain", None, 0.7, 0.6, 0.8, 100, "x", "measured"),
    ]
    cells.append(replace(cells[-1], row="side by side", measured=0.95, low=0.9, high=0.99))
    assert finding(get_table(28), cells) == (
        "The share of the time is lower in the NAT decoder than in the AT decoder here; the paper found the reverse. "
        "Decoding with both encoders side by side is slower than with one after the other here, timed in one process."
    ), "one encoder for both has another drafter, and is no other way to encode alone"


def timed(rule: str, low: float, high: float) -> Cell:
    row = f"CV16 en / Small.EN / top-k 50 / {rule}"
    return Cell(row, "over plain", None, (low + high) / 2, low, high, 40, "x", "measured", student=CLOSE)


def test_rules_that_keep_the_law_and_sigmoids_are_counted_apart() -> None:
    """Fault: of 13 settings in which speculative sampling was faster ten were a sigmoid's."""
    cells = [
        *(timed(rule, 0.6, 0.8) for rule in ("baseline", "exact", "fused (ours)", "untrained: baseline")),
        *(timed(rule, 1.2, 1.4) for rule in ("sigmoid, described", "sigmoid, released", "untrained: sigmoid, released")),
    ]
    assert finding(get_table(32), cells) == (
        "Speculative sampling by an exact rule is slower than plain decoding for all four settings here; "
        "by a sigmoid it is faster than plain decoding for all three settings here."
    )


def test_a_total_is_not_counted_beside_its_parts() -> None:
    cells = [
        Cell(f"10 / 1 / {head}", column, None, rate, rate - 1, rate + 1, 100, "%", "measured")
        for head, rate in (("N", 10.0), ("Y", 20.0))
        for column in ("1-2", "3-4", "Total")
    ]
    assert "for both pairs of numbers here" in finding(get_table(4), cells)


def test_counted_tokens_are_paired_with_those_of_equation_1() -> None:
    """Intervals of the two meet where that of their difference, paired by example, is all below 0."""
    bounds = {"tokens per run": (2.0, 2.6), "Eq. 1": (2.2, 2.8), "residual iid": (-0.12, -0.04)}
    cells = [
        Cell("EnDe / T5-base / 0", column, None, (low + high) / 2, low, high, 100, "", "measured")
        for column, (low, high) in bounds.items()
    ]
    assert finding(get_table(8), cells) == "The number of tokens a run is lower as counted than by Equation 1 here."


def test_arithmetic_that_misses_the_print_is_a_disagreement() -> None:
    cells = get_table(7).cells(Settings(), Evidence(lambda experiment: []))
    assert (
        finding(get_table(7), cells) == "The theory (Theorems 3.8 and 3.11) gives all twelve printed numbers, to their digits."
    )
    wrong = [replace(cells[0], measured=(cells[0].measured or 0) + 0.01), *cells[1:]]
    assert "gives eleven of twelve printed numbers" in finding(get_table(7), wrong)


COMMITTED = [table for table in TABLES.values() if table.is_committed]


@pytest.mark.parametrize("table", COMMITTED, ids=lambda table: table.name)
def test_what_is_committed_has_a_number_beside_a_published_one_or_a_finding(table: Table) -> None:
    read = json.loads((ROOT / "results" / "tables" / f"{table.name}.json").read_text(encoding="utf8"))
    beside = [cell for cell in read["cells"] if isinstance(cell["published"], float | int) and cell["measured"] is not None]
    decided = [one for one in read["finding"].split(". ") if not one.startswith("Nothing") and "cannot be told" not in one]
    assert beside or decided


def test_what_has_neither_is_left_out_of_what_is_committed() -> None:
    """They can be made; on the default run nothing of theirs compares."""
    left = {table.name for table in TABLES.values()} - {table.name for table in COMMITTED}
    assert left == {f"specdec-{number}" for number in (9, 12, 13, 15, 17, 19)}
    made = {path.name.partition(".")[0] for path in (ROOT / "results" / "tables").iterdir()}
    assert made == {table.name for table in COMMITTED}
