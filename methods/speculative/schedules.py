"""How many tokens to draft next (Leviathan 3.5); one object a row and generation. methods.parts.SCHEDULES names them all."""

from methods.options import check_gamma
from methods.speculative import theory


class Constant:
    """The same number every round: the paper's gamma."""

    def __init__(self, gamma: int) -> None:
        check_gamma(gamma)
        self.num_draft = gamma

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
        self.num_draft = theory.optimal_gamma(alpha, cost, maximum)
