"""``foretoken table N``: write and print a table, from stored records or after running what is missing."""

import argparse
import sys

from harness.commands.options import add_catalogue, add_engine, begin_engine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("number", type=int, help="as in the catalogue: `foretoken tables` lists them")
    parser.add_argument("--reproduce", action="store_true", help="run what is missing first")
    add_catalogue(parser)
    add_engine(parser)


def execute(args: argparse.Namespace) -> int:
    make_runner = begin_engine(args)

    from harness.catalogue import get_table
    from harness.estimate import print_plan
    from harness.models import load_tokenizer
    from harness.render.files import write_table
    from harness.render.text import terminal_table
    from harness.render.worked import terminal_examples
    from harness.reproduce import Store, check_stop_at_eos, folder_of, header_of, settings_of, with_verdicts

    table, settings, store = get_table(args.number), settings_of(args), Store(args.records)
    check_stop_at_eos(table.plan, settings, f"table {table.number}")
    if args.dry_run:
        print_plan([store.comparison(comparison) for comparison in table.plan(settings)], args.records)
        return 0
    if args.reproduce:
        store.run(table.plan(settings), make_runner())
    cells = store.explained(table.cells(settings, store.records_of))

    table = with_verdicts(table, cells)

    def pieces_of(experiment):  # type: ignore[no-untyped-def]
        return load_tokenizer(store.pinned(experiment).target).decode

    examples = table.examples(settings, store.records_of, pieces_of) if table.examples else []
    header = header_of("table", str(table.number), settings, store)
    paths = write_table(table, settings, cells, header, folder_of(settings) / "tables", examples)
    print(terminal_table(table, settings, cells))
    if examples:
        print(terminal_examples(examples, sys.stdout.isatty()))
    print("written: " + ", ".join(map(str, paths)), file=sys.stderr)
    return 0
