"""How many tokens to draft next (Leviathan 3.5); one object a row and generation. methods.parts.SCHEDULES names them all."""

from methods.options import check_gamma
from methods.speculative import theory


class Constant:
    """The same number every round: the paper's gamma."""

    def __init__(self, gamma: int) -> None:
        check_gamma(gamma)
        self.num_draft = self.most = gamma

    def next(self) -> int:
        return self.num_draft

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """A constant learns nothing."""


class Heuristic:
    """Two more after a round in which every draft stood, one fewer after any other, never below one.

    As in the paper and in transformers there is no upper bound but what is left to be generated. A round in which nothing was
    drafted says nothing and changes nothing.
    """

    def __init__(self, gamma: int = 5) -> None:
        check_gamma(gamma)
        self.num_draft = gamma

    def next(self) -> int:
        return self.num_draft

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        if num_drafted > 0:
            self.num_draft = self.num_draft + 2 if num_accepted == num_drafted else max(1, self.num_draft - 1)


class Optimal(Constant):
    """The number that maximises Theorem 3.8 for a measured alpha and cost ratio; 0 where no drafting pays."""

    def __init__(self, alpha: float, cost: float, maximum: int = 64) -> None:
        self.num_draft = self.most = theory.optimal_gamma(alpha, cost, maximum)


def swept(gamma: int) -> tuple[int, ...]:
    """The numbers that ``Sweep`` drafts: all up to 8, then even ones, none above ``gamma``."""
    return tuple(count for count in range(1, gamma + 1) if count <= 8 or count % 2 == 0)


class Sweep:
    """Another number every round, from 1 up to ``gamma`` and again from 1: one run shows what rounds of each number cost."""

    def __init__(self, gamma: int = 5) -> None:
        check_gamma(gamma)
        self.counts, self.turn, self.most = swept(gamma), 0, gamma

    def next(self) -> int:
        return self.counts[self.turn % len(self.counts)]

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        self.turn += 1
