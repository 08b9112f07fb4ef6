"""``foretoken figure NAME``: draw a figure, from stored records or after running what is missing."""

import argparse

from harness.commands.options import add_catalogue, add_engine, begin_engine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="as in the catalogue, such as leviathan-2")
    parser.add_argument("--reproduce", action="store_true", help="run what is missing first")
    add_catalogue(parser)
    add_engine(parser)


def execute(args: argparse.Namespace) -> int:
    make_runner = begin_engine(args)

    from harness.catalogue import get_figure
    from harness.estimate import print_plan
    from harness.models import load_tokenizer
    from harness.reproduce import Store, check_stop_at_eos, folder_of, settings_of

    figure, settings, store = get_figure(args.name), settings_of(args), Store(args.records)
    check_stop_at_eos(figure.plan, settings, f"figure {figure.name}")
    if args.dry_run:
        print_plan([store.comparison(comparison) for comparison in figure.plan(settings)], args.records)
        return 0
    if args.reproduce:
        store.run(figure.plan(settings), make_runner())

    def pieces_of(experiment):  # type: ignore[no-untyped-def]
        return load_tokenizer(store.pinned(experiment).target).decode

    for path in figure.draw(settings, store.records_of, folder_of(settings) / "figures", pieces_of):
        print(path)
    return 0
