"""Claims of Leviathan et al. against their Equation 1, Theorems 3.8 and 3.11 and Section A.5."""

import numpy as np

from harness.papers.claim import Claim, Line, Verdict, at_most, corners, line_of, yes
from harness.tables.published import Row, claim, read
from methods.speculative import theory

PAPER = "leviathan"
GAMMAS = np.arange(201)


def _walltime(alpha: float, gamma: int, cost: float) -> float:
    return float(theory.walltime_factor(alpha, gamma, cost))


def _setting(row: Row) -> str:
    return f"{row['task']}, {row['draft']}, temperature {row['temp']}"


def tradeoff() -> Claim:
    lines = []
    for row in read(PAPER, "table_1"):
        alpha, gamma = float(row["alpha"]), int(row["gamma"])
        tokens, operations = float(theory.expected_tokens(alpha, gamma)), float(theory.operations_factor(alpha, gamma))
        top = f"(1 - {alpha:g}^{gamma + 1}) / (1 - {alpha:g})"
        label = f"alpha {alpha:g}, gamma {gamma}"
        lines.append(line_of(f"{label}: speed", row["speed_x"], tokens, f"{top} = {tokens:.3f}"))
        arithmetic = f"{gamma + 1} / {tokens:.3f} = {operations:.3f}"
        lines.append(line_of(f"{label}: operations", row["operations_x"], operations, arithmetic))
    return Claim(
        title="Table 1 is what Theorems 3.8 and 3.11 give",
        statement="Table 1 lists speed and operations for six pairs of alpha and gamma at c = 0.",
        formula="speed = (1 - alpha^(gamma+1)) / (1 - alpha); operations = (gamma + 1) / speed",
        lines=tuple(lines),
        tables=(7,),
        sources=("table_1.csv",),
    )


def expected_speed() -> Claim:
    lines = []
    for row in read(PAPER, "table_4"):
        alpha, cost, gamma = row["alpha"], row["c"], int(row["gamma"])
        value = _walltime(float(alpha), gamma, float(cost))
        low, high = corners(lambda a, c, g=gamma: _walltime(a, g, c), alpha, cost)
        arithmetic = f"(1 - {alpha}^{gamma + 1}) / ((1 - {alpha}) ({gamma} x {cost} + 1)) = {value:.3f}"
        arithmetic += f"; {low:.2f} to {high:.2f} over the rounding of alpha and c"
        lines.append(line_of(_setting(row), row["exp_x"], value, arithmetic, low, high))
    return Claim(
        title="Table 4's expected speed-ups follow from its alpha, gamma and c",
        statement='Column "Exp" of Table 4 is Theorem 3.8 at the alpha, gamma and c of its row.',
        formula="speed-up = (1 - alpha^(gamma+1)) / ((1 - alpha)(gamma c + 1))",
        lines=tuple(lines),
        tables=(10,),
        sources=("table_4.csv",),
    )


def measured_speed() -> Claim:
    """Equation 1 is no bound where acceptance depends on the text before; 1 / (1 - alpha) is, whatever depends on what.

    Every run of the target ends with a token of the target's own. Behind any text the next token is the target's own with a
    chance of at least 1 - beta: a draft is refused with that chance, and where none is made it is its own. An output of T
    tokens so takes (1 - alpha) T runs or more, as alpha is the mean of beta over the target's output, and a run yields at most
    1 / (1 - alpha) tokens. Example: beta is 1 at five of every six tokens and 0 at the sixth, gamma is 5: alpha is 5/6, a run
    yields 6 tokens, and Equation 1 gives 3.99.
    """
    lines = []
    for row in read(PAPER, "table_4"):
        alpha = row["alpha"]
        bound = 1 / (1 - float(alpha))
        _, loosest = corners(lambda a: 1 / (1 - a), alpha)
        arithmetic = f"1 / (1 - {alpha}) = {bound:.3f}, at most {loosest:.3f} with alpha's rounding"
        verdict = at_most(row["emp_x"], bound, loosest)
        lines.append(Line(_setting(row), row["emp_x"], f"at most {bound:.3f}", arithmetic, verdict))
    return Claim(
        title="Measured speed-ups that a free draft could not reach",
        statement='Column "Emp" of Table 4 is measured. Before any text the next token is the target\'s own, which ends a run, '
        "with a chance of at least 1 - beta. So a run yields at most 1 / (1 - alpha) tokens on average, whatever gamma is and "
        "however acceptance depends on the text, and with a free draft (c = 0) the speed-up is at most that. (The paper says "
        "that implementations differed.)",
        formula="speed-up <= 1 / (1 - alpha)",
        lines=tuple(lines),
        tables=(8, 10),
        sources=("table_4.csv",),
    )


def cost_ratio() -> Claim:
    bound = claim(PAPER, "c always less than")
    costs = {row["draft"]: row["c"] for row in read(PAPER, "table_4")}
    lines = [
        Line(draft, f"c < {bound}", f"c = {cost}", f"{cost} {'<' if float(cost) < float(bound) else '>='} {bound}",
             yes(float(cost) < float(bound)))
        for draft, cost in costs.items()
    ]  # fmt: skip
    return Claim(
        title="The cost ratio c",
        statement=f"The text says that c was always less than {bound}.",
        formula="c of Table 4",
        lines=tuple(lines),
        tables=(10,),
        sources=("text_claims.csv", "table_4.csv"),
    )


def lenience_speed() -> Claim:
    """At temperature 1 gamma is not printed: the best one is taken, which no other could exceed."""
    lines = []
    for row in read(PAPER, "table_5"):
        if not row["speed_x"]:
            continue
        alpha, cost = f"{float(row['alpha']):.2f}", row["c"]
        fixed = int(row["gamma_used_for_computed"]) if row["temp"] == "0" else None

        def speed(a: float, c: float, gamma: int | None = fixed) -> float:
            return float(theory.walltime_factor(a, GAMMAS, c).max()) if gamma is None else _walltime(a, gamma, c)

        value, (low, high) = speed(float(alpha), float(cost)), corners(speed, alpha, cost)
        how = f"gamma = {fixed}" if fixed is not None else "the best gamma"
        label = f"temperature {row['temp']}, lenience {row['lenience']}, alpha {alpha}"
        arithmetic = (
            f"Theorem 3.8 at alpha {alpha}, c {cost} and {how} = {value:.3f}; {low:.2f} to {high:.2f} over the rounding"
        )
        lines.append(line_of(label, row["speed_x"], value, arithmetic, low, high))
    return Claim(
        title="Speed-ups under lenience",
        statement="Section A.5 lists expected speed-ups of T5-small for four values of lenience at both temperatures.",
        formula="max over gamma of (1 - alpha^(gamma+1)) / ((1 - alpha)(gamma c + 1))",
        lines=tuple(lines),
        tables=(11,),
        sources=("table_5.csv",),
    )


def lenience_inequality() -> Claim:
    """Any law will do: what the printed inequality accepts at l = 1 does not depend on it."""
    strict = next(row for row in read(PAPER, "table_5") if row["temp"] == "0" and float(row["lenience"]) == 1)
    law = np.array([0.6, 0.3, 0.1])
    printed, turned = int((law <= law.max()).sum()), int((law >= law.max()).sum())
    example = ", ".join(f"{x:g}" for x in law)
    return Claim(
        title="Temperature 0: the inequality of the lenient rule",
        statement=f'The rule is printed as "{claim(PAPER, "temp0 lenience acceptance condition")}". At l = 1 it must be greedy '
        f"decoding, and Table 5 gives alpha {strict['alpha']} there.",
        formula="accept x if p(x) <= l max(p), as printed; p(x) >= l max(p), turned",
        lines=(
            Line("as printed, l = 1", f"alpha {strict['alpha']}", "alpha 1",
                 f"of probabilities {example} it accepts {printed} of {len(law)}: every token", yes(printed == 1)),
            Line("turned, l = 1", f"alpha {strict['alpha']}", "alpha = how often the draft is the likeliest token",
                 f"of probabilities {example} it accepts {turned} of {len(law)}: the likeliest", yes(turned == 1)),
        ),
        tables=(11,),
        sources=("text_claims.csv", "table_5.csv"),
    )  # fmt: skip


def sharper() -> Claim:
    rows = read(PAPER, "table_3")
    alphas = {(row["target"], row["draft"], row["temp"]): row["alpha"] for row in rows}
    verdicts: dict[str, Verdict] = {">": "holds", "=": "only within rounding", "<": "contradicted"}
    lines = []
    for target, draft in dict.fromkeys((row["target"], row["draft"]) for row in rows):
        cold, warm = alphas[target, draft, "0"], alphas[target, draft, "1"]
        sign = ">" if float(cold) > float(warm) else "=" if float(cold) == float(warm) else "<"
        found = f"{cold} {sign} {warm}"
        lines.append(Line(f"{target} with {draft}", "alpha(0) > alpha(1)", found, found, verdicts[sign]))
    return Claim(
        title="The sharper the distribution, the higher alpha",
        statement="The text says so for all models; temperature 0 is the sharpest.",
        formula="alpha at temperature 0 > alpha at temperature 1 (Table 3)",
        lines=tuple(lines),
        tables=(9,),
        sources=("text_claims.csv", "table_3.csv"),
    )


def oracle() -> Claim:
    printed = claim(PAPER, "oracle-gamma gain")
    alphas = np.linspace(0.01, 0.995, 198)
    lines = []
    for cost in (0.01, 0.02, 0.05):
        best = theory.walltime_factor(alphas[:, None], np.arange(401)[None, :], cost).max(-1)
        gains = 100 * (theory.oracle_factor(alphas, cost) / best - 1)
        place = int(gains.argmax())
        usual = float(gains[alphas <= 0.9].max())
        arithmetic = f"greatest at alpha {alphas[place]:.2f}: {gains[place]:.1f} %; for alpha <= 0.9 at most {usual:.1f} %"
        verdict = yes(abs(gains[place] - float(printed)) <= 5)
        lines.append(Line(f"c = {cost:g}", f"up to ~{printed} %", f"{gains[place]:.1f} %", arithmetic, verdict))
    return Claim(
        title="What an oracle for gamma could gain",
        statement=f"Section 3.5: up to about {printed} % over the best fixed gamma (held to the nearest ten).",
        formula="1 / (1 - alpha + c alpha), over the maximum of Theorem 3.8 over gamma",
        lines=tuple(lines),
        sources=("text_claims.csv",),
    )


CLAIMS = (measured_speed, cost_ratio, lenience_speed, lenience_inequality, sharper, expected_speed, tradeoff, oracle)
