"""``foretoken report``: the static site of all tables, figures, claims and records at hand. Runs no model."""

import argparse
from pathlib import Path

from harness import plugins
from harness.commands.options import RESULTS, add_plugin, positive

GENERATIONS = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="where tables/ and figures/ lie")
    parser.add_argument("--records", type=Path, default=RESULTS / "records", metavar="FOLDER", help="where records are kept")
    parser.add_argument(
        "--output", type=Path, default=RESULTS / "report", metavar="FOLDER", help="the site; replaced as a whole"
    )
    parser.add_argument(
        "--generations",
        type=positive("--generations"),
        default=GENERATIONS,
        metavar="N",
        help="generations shown an experiment",
    )
    add_plugin(parser)


def execute(args: argparse.Namespace) -> int:
    from harness.report.site import collect, write_site

    plugins.warn_of_broken("table")
    content = collect(args.results, args.records, args.generations)
    count = write_site(content, args.output)
    made = sum(table.file is not None for table in content.tables), sum(bool(figure.files) for figure in content.figures)
    print(
        f"{count} pages: {made[0]} of {len(content.tables)} tables and {made[1]} of {len(content.figures)} figures are made, "
        f"{len(content.experiments)} experiments have records here"
    )
    print(args.output / "index.html")
    return 0
