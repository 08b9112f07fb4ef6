"""What a table, a cell and a figure are, and how they are written as text, Markdown, LaTeX, CSV and JSON."""
