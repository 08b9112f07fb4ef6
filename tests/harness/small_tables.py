"""Two tables of the smallest model, the second not committed: a catalogue for ``foretoken reproduce``."""

from dataclasses import replace

from harness.core.experiment import DrafterSpec, MethodSpec, ModelSpec, comparison_id
from harness.core.settings import Settings
from harness.papers.specdec.measures import sentence_speedup
from harness.tables.engine import Column, Row, Section, table
from harness.tables.roles import plain_decoding


def sections(settings: Settings) -> list[Section]:
    plain = plain_decoding(
        settings,
        task="text",
        target=ModelSpec(name="zoo:gpt-target"),
        limit=settings.limit or 4,
        max_new_tokens=16,
        num_threads=1,
        comparison=comparison_id("small", "copy"),
    )
    copy = plain.replace(method=MethodSpec.of("speculative", drafter=DrafterSpec(kind="copy"), gamma=3))
    return [Section({"plain": plain, "copy": copy}, (Row("copy", "copy"),))]


SPEED = Column(
    "speed-up",
    lambda known, row: sentence_speedup(*(known[name][1] for name in ("plain", "plain", "copy"))),
    "x",
    reads=("plain",),
)
COMMITTED = table(
    number=101, paper="small", paper_number=1, title="speed", row_heads=("drafter",), columns=(SPEED,), sections=sections
)
OTHER = replace(COMMITTED, number=102, paper_number=2, is_committed=False)
TABLES = {one.number: one for one in (COMMITTED, OTHER)}
