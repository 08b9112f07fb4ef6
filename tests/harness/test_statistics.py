"""Intervals against closed forms, and coverage on data whose truth is known."""

import numpy as np
import pytest

from harness.measures.statistics import (
    DESCRIPTIVE,
    Estimate,
    Redrawn,
    Student,
    chance_beyond,
    drift,
    exact_interval,
    freedom_of,
    holm,
    independent_difference,
    independent_students,
    median,
    medians_drawn,
    of_sums,
    paired_difference,
    ratio_of_examples,
    ratio_of_totals,
    resampled,
    student_quantile,
    tail_among,
    weights,
    without_each,
)


def test_ratio_is_of_totals_not_mean_of_ratios() -> None:
    estimate = ratio_of_totals(np.array([1.0, 30.0]), np.array([1.0, 10.0]))
    assert estimate is not None
    assert estimate.value == pytest.approx(31 / 11)


def test_one_example_has_no_spread_and_none_no_value() -> None:
    single = ratio_of_totals(np.array([2.0]), np.array([4.0]))
    assert single is not None
    assert (single.value, single.low, single.high, single.n) == (0.5, None, None, 1)
    assert ratio_of_totals(np.array([]), np.array([])) is None
    assert ratio_of_totals(np.array([0.0]), np.array([0.0])) is None


def test_interval_matches_the_normal_one_for_a_mean() -> None:
    values = np.random.default_rng(1).normal(3.0, 1.0, 400)
    estimate = ratio_of_totals(values, np.ones(400))
    assert estimate is not None
    assert estimate.low is not None
    assert estimate.high is not None
    half = 1.96 * values.std() / 20
    assert estimate.value == pytest.approx(values.mean())
    assert estimate.low == pytest.approx(values.mean() - half, abs=0.15 * half)
    assert estimate.high == pytest.approx(values.mean() + half, abs=0.15 * half)


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(200):
        denominators = rng.integers(5, 50, 60)
        estimate = ratio_of_totals(rng.binomial(denominators, 0.7), denominators)
        assert estimate is not None
        covered += estimate.low <= 0.7 <= estimate.high  # type: ignore[operator]
    assert 0.88 <= covered / 200 <= 0.99


def test_paired_ratio_is_tighter_than_the_spread_of_either_side() -> None:
    rng = np.random.default_rng(3)
    lengths = rng.uniform(1, 100, 50)
    estimate = ratio_of_totals(2 * lengths + rng.uniform(-0.01, 0.01, 50), lengths)
    assert estimate is not None
    assert estimate.low == pytest.approx(2, abs=1e-4)
    assert estimate.high == pytest.approx(2, abs=1e-4)


def test_what_is_the_same_in_every_example_has_no_interval() -> None:
    """A baseline over itself, or a ratio that follows from the plan, is no measurement with a spread of nothing."""
    lengths = np.random.default_rng(3).uniform(1, 100, 50)
    for estimate in (ratio_of_totals(2 * lengths, lengths), of_sums({"s": lengths}, lambda sums, n: sums["s"] / sums["s"])):
        assert estimate is not None
        assert (estimate.low, estimate.high, estimate.n) == (None, None, 50)


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [
        (16, 16, 0.794, 1.0),
        (0, 16, 0.0, 0.206),
        (640, 640, 0.9943, 1.0),
        (0, 40, 0.0, 0.088),
        (5, 10, 0.187, 0.813),
        (81, 263, 0.2527, 0.3676),
    ],
)
def test_exact_intervals_are_those_of_clopper_and_pearson(hits: int, n: int, low: float, high: float) -> None:
    """Tabulated values; the last is Newcombe's (1998) example of 81 of 263."""
    assert exact_interval(hits, n) == pytest.approx((low, high), abs=6e-4)


def test_an_exact_interval_covers_at_least_as_often_as_it_says() -> None:
    """Over all outcomes of 20 examples, weighed by their chances: no sampling."""
    from math import comb

    for share in (0.02, 0.1, 0.37, 0.5, 0.93):
        chances = [comb(20, k) * share**k * (1 - share) ** (20 - k) for k in range(21)]
        inside = [low <= share <= high for low, high in (exact_interval(k, 20) for k in range(21))]
        assert sum(chance for chance, hit in zip(chances, inside, strict=True) if hit) >= 0.95


def test_examples_that_counted_nothing_narrow_no_exact_interval() -> None:
    """Of 30 requests one got so far and stood five times; of 40 three ever drafted, and nothing stood."""
    one = ratio_of_examples([("a", 5, 5), *((f"e{i}", 0, 0) for i in range(29))], whole=1.0)
    assert one is not None
    assert (one.value, one.low, one.high, one.n, one.exact) == (1.0, None, None, 1, False)
    three = ratio_of_examples([("a", 0, 4), ("b", 0, 6), ("c", 0, 5), *((f"e{i}", 0, 0) for i in range(37))], whole=1.0)
    assert three is not None
    assert (three.value, three.n) == (0.0, 3)
    assert three.high == pytest.approx(1 - 0.025 ** (1 / 3), abs=1e-3)


def test_a_share_of_examples_is_exact_and_one_of_tokens_bounded_at_its_ends() -> None:
    equal = ratio_of_examples([(str(i), 100.0, 1.0) for i in range(16)], "%", 100.0)
    assert equal is not None
    assert (equal.value, equal.exact, equal.high) == (100.0, True, 100.0)
    assert equal.low == pytest.approx(79.4, abs=0.1)
    tokens = ratio_of_examples([(str(i), 10.0 + i % 3, 10.0 + i % 3) for i in range(192)], "", 1.0)
    assert tokens is not None
    assert tokens.low == pytest.approx(0.025 ** (1 / 192), abs=1e-4)  # as if each of 192 texts counted once
    none = ratio_of_examples([(str(i), 0.0, 10.0 + i % 3) for i in range(40)], "", 1.0)
    assert none is not None
    assert none.high == pytest.approx(0.088, abs=1e-3)
    alike = ratio_of_examples([(str(i), 13.0, 16.0) for i in range(192)], "", 1.0)
    assert alike is not None
    assert (alike.low, alike.high) == (None, None)  # 13 of 16 in every text: one text, 192 times
    assert not ratio_of_examples([(str(i), float(i % 4), 4.0) for i in range(40)], "", 1.0).exact  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("n", "exact", "shows"), [(DESCRIPTIVE - 1, False, False), (DESCRIPTIVE, False, True), (5, True, True)]
)
def test_of_too_few_examples_no_interval_is_shown(n: int, exact: bool, shows: bool) -> None:
    shown = Estimate(1.0, 0.9, 1.1, n, exact=exact).shown
    assert (shown.low is not None, shown.high is not None, shown.value) == (shows, shows, 1.0)


def test_of_sums_agrees_with_ratio_of_totals() -> None:
    rng = np.random.default_rng(4)
    hits, counts = rng.integers(0, 5, 80).astype(float), np.full(80, 5.0)
    a = ratio_of_totals(hits, counts)
    b = of_sums({"hits": hits, "counts": counts}, lambda s, n: s["hits"] / s["counts"])
    assert a is not None
    assert b is not None
    assert a.value == pytest.approx(b.value)
    assert a.low == pytest.approx(b.low, abs=0.02)  # type: ignore[arg-type]


def test_drift() -> None:
    assert drift(np.array([1.0, 1.0, 1.3, 1.3])) == pytest.approx(0.3)
    assert drift(np.array([1.0, 2.0])) == 0.0


@pytest.mark.parametrize("share", [0.0, 1.0, 10.0])
def test_intervals_of_three_replicas_cover_what_replicas_differ_by(share: float) -> None:
    """Trainings that differ by nothing, by as much as 40 examples each leave open, and by far more."""
    rng, covered, covered_without = np.random.default_rng(4), 0, 0
    units = [(name, str(n)) for name in "abc" for n in range(40)]
    for _ in range(300):
        means = 3 + rng.normal(0, np.sqrt(share / 40), 3)
        values = np.repeat(means, 40) + rng.normal(0, 1, 120)
        found = ratio_of_totals(values, np.ones(120), units=units)
        alone = ratio_of_totals(values, np.ones(120))
        assert found is not None
        assert alone is not None
        covered += found.low <= 3 <= found.high  # type: ignore[operator]
        covered_without += alone.low <= 3 <= alone.high  # type: ignore[operator]
    assert covered / 300 >= 0.93
    assert share < 10 or covered_without / 300 < 0.6, "examples alone know nothing of it"


def test_the_interval_over_replicas_is_students() -> None:
    """Table values of Student's quantile; three replicas without a spread of their own."""
    for freedom, expected in ((1, 12.706), (2, 4.303), (3, 3.182), (9, 2.262), (60, 2.000)):
        assert student_quantile(freedom) == pytest.approx(expected, abs=1e-3)
        assert chance_beyond(1.0, freedom) == pytest.approx(0.05, abs=1e-6)
    assert chance_beyond(14.089 / 4.303, 2) == pytest.approx(0.005, rel=1e-2), "Student's table, two degrees of freedom"


@pytest.mark.parametrize(("new", "inside"), [(3, 0.95), (1, 0.907), (None, 0.974)])
def test_an_interval_of_replicas_holds_another_recordings_number(new: int | None, inside: float) -> None:
    """Three trainings make an interval, ``new`` ones another number; None is the truth.

    By Student's law with two degrees of freedom, whose chance within x is x / sqrt(2 + x^2): x is what the interval reaches,
    4.303 sqrt(2 / 3), over sqrt(1 / 3 + 1 / new).

    Fault: the interval was Student's own, which holds the number of three new trainings in 91 %.
    """
    x = 4.3027 * (2 / 3) ** 0.5 / (1 / 3 + (1 / new if new else 0)) ** 0.5
    assert x / (2 + x**2) ** 0.5 == pytest.approx(inside, abs=1e-3)
    rng, found, draws = np.random.default_rng(3), 0, 2000
    units = [(name, name) for name in "abc"]
    for _ in range(draws):
        one = ratio_of_examples([(unit, value, 1.0) for unit, value in zip(units, rng.normal(50, 1, 3), strict=True)])
        assert one is not None
        assert one.low is not None
        assert one.high is not None
        found += one.low <= (rng.normal(50, 1, new).mean() if new else 50) <= one.high
    assert found / draws == pytest.approx(inside, abs=3 * (inside * (1 - inside) / draws) ** 0.5)


def test_several_tests_are_decided_at_once() -> None:
    assert holm([0.04, 0.01, 0.03]) == [False, True, False], "0.05 / 3 for the least, 0.05 / 2 for the next, which ends it"
    assert holm([0.01, 0.02, 0.04]) == [True, True, True]
    assert holm([]) == []


def drawn(rows: dict[tuple[str, str], float]) -> Redrawn:
    """A mean of examples, and what it is drawn from."""
    found = ratio_of_examples([(unit, value, 1.0) for unit, value in rows.items()])
    assert found is not None
    assert found.redrawn is not None
    return found.redrawn


def test_a_difference_is_of_the_same_draws() -> None:
    """Two means that differ by 0.1 in every example differ by that in each draw; one may lack examples, none be of others.

    The examples of another arm are the same by their names. Fault: two arms of the same texts were compared by whether their
    intervals meet.
    """
    rng = np.random.default_rng(1)
    base = {("arm", str(n)): value for n, value in enumerate(rng.random(40))}
    more = {name: value + 0.1 + 0.01 * (name[1] > "2") for name, value in base.items()}
    for arm in ("arm", "other"):
        found = paired_difference(drawn({(arm, name): value for (_, name), value in more.items()}), drawn(base))
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        assert 0.1 <= found.low < found.value < found.high <= 0.11
        assert found.n == 40
    part = dict(list(base.items())[:30])
    assert paired_difference(drawn(part), drawn(base)) is not None
    strangers = {("other", f"{name} of others"): value for (_, name), value in base.items()}
    assert paired_difference(drawn(strangers), drawn(base)) is None
    few = {name: value + (name[1] in ("1", "2", "3")) for name, value in base.items()}
    found = paired_difference(drawn(few), drawn(base))
    assert found is not None
    assert found.n == 3


def test_a_difference_of_two_arms_holds_what_their_replicas_differ_by() -> None:
    """Three replicas of both arms, whose differences are 1, 2 and 3: Student's half, 4.303 / sqrt(3), to either side of 2.

    It decides what is so, and is not for another recording.
    """
    rng = np.random.default_rng(2)
    base = {(f"plain {name}", f"{name}{n}"): value for name in "abc" for n, value in enumerate(rng.normal(9, 1, 50))}
    more = {(f"other {unit[1][0]}", unit[1]): value + 1 + "abc".index(unit[1][0]) for unit, value in base.items()}
    found = paired_difference(drawn(more), drawn(base))
    assert found is not None
    assert found.student is not None
    assert (found.value, found.student.freedom) == (pytest.approx(2), 2)
    assert found.student.half == pytest.approx(4.303 / 3**0.5, abs=1e-3)
    both = independent_students(found.student, Student(found.student.half, 5))
    assert both is not None
    assert (both.freedom, both.error**2) == (
        2,
        pytest.approx(found.student.error**2 + Student(found.student.half, 5).error ** 2),
    )
    assert (found.low, found.high) == (pytest.approx(2 - 4.303 / 3**0.5, abs=1e-3), pytest.approx(2 + 4.303 / 3**0.5, abs=1e-3))


def test_differences_cover_the_truth_as_often_as_they_say() -> None:
    """Means 0.3 apart, of the same 60 examples and of others: 1,500 samples each, whose share has a standard error of 0.6 %.

    Intervals that do not meet are no such test: those of the first kind part at six standard errors, of the second at 2.8.
    """
    rng, paired, apart, told = np.random.default_rng(5), 0, 0, 0
    for _ in range(1500):
        hard = rng.normal(0, 2, 60)
        first, second = hard + rng.normal(0.3, 1, 60), hard + rng.normal(0, 1, 60)
        ours, theirs = ({(arm, str(n)): float(x) for n, x in enumerate(own)} for arm, own in (("a", first), ("b", second)))
        found = paired_difference(drawn(ours), drawn(theirs))
        assert found is not None
        paired += found.low <= 0.3 <= found.high  # type: ignore[operator]
        told += found.low > 0  # type: ignore[operator]
        alone = [ratio_of_totals(own + 5, np.ones(60)) for own in (first, rng.normal(0, 2, 60))]
        one, other = ((end.low, end.value, end.high) for end in alone if end is not None)
        low, high = independent_difference(one, other)  # type: ignore[arg-type]
        apart += low <= 0.3 <= high
    assert 0.925 < paired / 1500 < 0.965
    assert 0.925 < apart / 1500 < 0.965
    assert told / 1500 > 0.3, "the power of a test at 5 %: a normal one finds it in 38 of 100"


def test_a_difference_of_others_is_newcombes() -> None:
    """Of 56 of 70 and 48 of 80: 0.0524 to 0.3339 (Newcombe 1998, Statistics in Medicine 17:873, Table II (a), method 10)."""
    ends = []
    for hits, n in ((56, 70), (48, 80)):
        share, z = hits / n, 1.959964
        centre, half = hits + z * z / 2, z * np.sqrt(z * z / 4 + hits * (1 - share))
        ends.append(((centre - half) / (n + z * z), share, (centre + half) / (n + z * z)))
    assert independent_difference(*ends) == (pytest.approx(0.0524, abs=5e-5), pytest.approx(0.3339, abs=5e-5))


@pytest.mark.parametrize("n", [3, 4, 5, 8, 40])
def test_a_median_has_an_interval_where_it_may_cover(n: int) -> None:
    """Times that are never alike, by their truth: all of n lie on one side of the median with a chance of 2 / 2**n."""
    rng = np.random.default_rng(n)
    found = [median(np.exp(rng.normal(0, 0.3, n))) for _ in range(400)]
    if 2 / 2**n > 0.1:
        assert {(one.low, one.high) for one in found} == {(None, None)}
    else:
        assert 0.895 < np.mean([one.low < 1 < one.high for one in found if one.low and one.high]) < 0.985


def test_replicas_make_an_interval_wider_down_to_nothing() -> None:
    """Student's half of three replicas, times sqrt(2); of two that differ by most of a share."""
    found = ratio_of_examples([((name, str(n)), float("abc".index(name) + 1), 1.0) for name in "abc" for n in range(50)])
    assert found is not None
    assert found.low == 0.0, "2 - 4.303 sqrt(2 / 3) is below 0"
    assert found.high == pytest.approx(2 + 4.303 * (2 / 3) ** 0.5, abs=1e-3)
    rows = [((name, str(n)), 0.2 if name == "a" else 0.9, 1.0) for name in "ab" for n in range(50)]
    share = ratio_of_examples(rows, whole=1.0)
    assert share is not None
    assert (share.low, share.high) == (0.0, 1.0)


def test_replicas_of_a_difference_may_be_negative_and_of_a_time_not() -> None:
    """Table 3's time saved was printed as [0.00, 44.08], where half of Student's interval was 22.5 to either side of 21.6."""
    values, units = np.repeat([1.0, 2.0, 3.0], 50), [(name, str(n)) for name in "abc" for n in range(50)]

    def means(counts: np.ndarray) -> np.ndarray:
        return counts @ values / counts.sum(1)

    ends = [resampled(2.0, means, 150, units=units, least=least) for least in (0.0, None)]
    assert [one.low for one in ends] == [0.0, pytest.approx(2 - 4.303 * (2 / 3) ** 0.5, abs=1e-3)]


@pytest.mark.parametrize(("n", "shows"), [(5, False), (29, False), (30, True)])
@pytest.mark.parametrize("hits", [0.0, 16.0])
def test_a_share_of_tokens_at_its_end_is_not_exact(n: int, shows: bool, hits: float) -> None:
    """16 tokens in each of n texts, or of other lengths: below 30 texts it describes them, up to 100 it is approximate."""
    for lengths in ([16.0] * n, [16.0 * (1 + number % 2) for number in range(n)]):
        found = ratio_of_examples([(str(number), hits * size / 16, size) for number, size in enumerate(lengths)], whole=1.0)
        assert found is not None
        assert (found.exact, found.is_approximate, found.shown.low is not None) == (False, True, shows)
        assert found.low is not None
    repeated = ratio_of_examples([(str(number), 1.0, 1.0) for number in range(n) for _ in range(3)], whole=1.0)
    assert repeated is not None
    assert repeated.exact, "a share of examples, each of three repeats"


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_medians_of_draws_are_numpys(n: int) -> None:
    rng = np.random.default_rng(n)
    values, counts = rng.normal(size=n).round(1), weights(n, 200)
    expected = [np.median(np.repeat(values, row.astype(int))) for row in counts]
    np.testing.assert_allclose(medians_drawn(values, counts), expected)
    values[0] = np.nan
    drawn = [np.repeat(values, row.astype(int)) for row in counts]
    expected = [np.median(row[~np.isnan(row)]) if (~np.isnan(row)).any() else np.nan for row in drawn]
    np.testing.assert_allclose(medians_drawn(values, counts), expected)


@pytest.mark.parametrize(
    ("values", "freedom"),
    [
        ([0.0] * 49 + [1.0], 2.125),  # by hand: kurtosis 50 / (49 / 50) - 3 = 48.02, and 100 / (48.02 - 47 / 49)
        ([0.0] * 48 + [1.0] * 2, 4.529),  # kurtosis 1 / (0.04 x 0.96) - 3 = 23.04, and 100 / (23.04 - 47 / 49)
        ([0.0, 1.0] * 25, 49),  # spread less than a normal: as many as there are examples, less one
        ([0.0] * 49 + [1e200], 2.125),  # faults: a square that is infinite, or 0
        ([0.0] * 49 + [1e-200], 2.125),
    ],
)
def test_uneven_examples_leave_few_degrees_of_freedom(values: list[float], freedom: float) -> None:
    of_all = np.array(values)
    assert freedom_of(without_each(lambda counts: counts @ of_all / counts.sum(1), 50)) == pytest.approx(freedom, abs=1e-3)


def test_a_number_that_hangs_on_one_example_has_the_fewest() -> None:
    """Fault: the example without which there is no number was left out of the count."""
    assert freedom_of(np.array([*np.arange(1.0, 40.0), np.nan])) == 2


def test_where_one_example_holds_all_an_interval_reaches_further() -> None:
    """By hand: Student's quantiles are 4.303 of 2 degrees of freedom, 3.182 of 3 and 2.010 of 49.

    Fault: the ends of draws alone.
    """
    values, ones = np.array([1.0] * 49 + [11.0]), np.ones(50)
    draws = weights(50) @ values / 50
    low, high = np.quantile(draws, [tail_among(1, 50), 1 - tail_among(1, 50)])
    further = (4.303 + 0.125 * (3.182 - 4.303)) / 2.010
    found, signed = ratio_of_totals(values, ones), ratio_of_totals(values, ones, ends=(None, None))
    assert found is not None
    assert signed is not None
    assert (found.low, found.high) == (
        pytest.approx(1.2 * (low / 1.2) ** further, rel=1e-3),
        pytest.approx(1.2 + further * (high - 1.2), rel=1e-3),
    )
    assert (signed.low, signed.high) == (
        pytest.approx(1.2 + further * (low - 1.2), rel=1e-3),
        pytest.approx(1.2 + further * (high - 1.2), rel=1e-3),
    )


def test_an_interval_ends_where_the_number_does() -> None:
    """Faults: a time of 0 or less, and a share above the whole, because a few examples hold most of it."""
    few = np.array([0.001] * 49 + [11.0])
    time = ratio_of_totals(few, np.ones(50))
    share = ratio_of_totals(10.0 - few / 1.2, np.full(50, 10.0), whole=1.0)
    assert time is not None
    assert time.low is not None
    assert share is not None
    assert 0 < time.low < 0.001
    assert share.high == 1.0


def test_differences_reach_as_far_to_both_sides_of_nothing() -> None:
    """Fault: those above 0 ended there, and the same below it did not."""
    values, ones = np.array([0.01] * 39 + [2.0]), np.ones(40)
    above, below = (ratio_of_totals(one, ones, ends=(None, None)) for one in (values, -values))
    assert above is not None
    assert below is not None
    assert above.low is not None
    assert (below.low, below.high) == (pytest.approx(-above.high, rel=0.1), pytest.approx(-above.low, rel=0.1))
    assert above.low < 0


def test_a_difference_of_one_example_has_no_interval() -> None:
    """Fault: a division by its degrees of freedom."""
    one, other = (Redrawn(("x",), lambda counts, value=value: counts.sum(1) * value) for value in (1.0, 0.5))
    found = paired_difference(one, other)
    assert found is not None
    assert (found.value, found.low, found.high) == (0.5, None, None)


@pytest.mark.parametrize("deviation", [0.5, 1.0, 1.5])
def test_intervals_of_uneven_examples_cover(deviation: float) -> None:
    """Means of 100 lognormal times, as of outputs that loop: percentiles of draws alone cover 95, 93 and 87 %."""
    rng = np.random.default_rng(5)
    truth, covered = np.exp(deviation**2 / 2), 0
    for _ in range(300):
        found = ratio_of_totals(rng.lognormal(0.0, deviation, 100), np.ones(100))
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= truth <= found.high
    assert covered / 300 >= {0.5: 0.95, 1.0: 0.94, 1.5: 0.9}[deviation]
