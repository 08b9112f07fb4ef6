"""The papers' tables that hold settings, not results: they are taken over, and shown with the catalogue."""

from dataclasses import dataclass

from harness.catalogue import published

NEWLINE = "\\n"  # as the CSV files write it inside a prompt


@dataclass(frozen=True, kw_only=True)
class InputTable:
    """A table of settings; ``label`` and ``value`` name the columns that say what is set and to what."""

    paper: str
    paper_number: int
    title: str
    label: str
    value: str
    details: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.paper}-{self.paper_number}"

    def entries(self) -> list[tuple[str, str]]:
        """What is set, with its details, and to what; prompts have real line breaks."""
        rows = published.read(self.paper, f"table_{self.paper_number}")
        return [(", ".join((row[self.label], *self._details(row))), row[self.value].replace(NEWLINE, "\n")) for row in rows]

    def _details(self, row: published.Row) -> list[str]:
        return [f"{name} {row[name]}" for name in self.details]


INPUTS = [
    InputTable(
        paper="ppd",
        paper_number=1,
        title="prompts, generated tokens and test examples (the papers' prompt is a task's default)",
        label="dataset",
        value="prompt_newlines_as_backslash_n",
        details=("gen_tokens", "n_test"),
    ),
    InputTable(
        paper="ppd",
        paper_number=4,
        title="training of the heads of intermediate layers (the defaults of `foretoken heads`)",
        label="hyperparameter",
        value="value",
    ),
    InputTable(
        paper="specdec",
        paper_number=7,
        title="training of drafter and verifier (the defaults of the zoo's recipes, where they are known)",
        label="metric",
        value="value",
        details=("model", "setting"),
    ),
]
