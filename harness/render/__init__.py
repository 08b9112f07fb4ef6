"""From cells to files that people and programs read: Markdown, CSV, JSON, LaTeX; and a generation in colours."""

from harness.render.coloured import coloured_rounds, to_html, to_terminal
from harness.render.files import Header, write_table
from harness.render.text import markdown_table, terminal_table

__all__ = ["Header", "coloured_rounds", "markdown_table", "terminal_table", "to_html", "to_terminal", "write_table"]
