"""Every name in NOTATION.md is a name in the code."""

import ast
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE, NAME = re.compile(r"`([^`]+)`"), re.compile(r"[A-Za-z][\w.-]*")


def names_of(path: Path) -> set[str]:
    """What a file defines, and the words that are its strings: options and columns are named by them."""
    found = {path.stem}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def test_every_name_in_the_notation_is_in_the_code() -> None:
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "*.py"], capture_output=True, text=True, check=True).stdout
    known = set().union(*(names_of(ROOT / name) for name in listed.split() if (ROOT / name).is_file()))
    words = {word for code in CODE.findall((ROOT / "NOTATION.md").read_text(encoding="utf8")) for word in NAME.findall(code)}
    assert len(words) > 60
    for word in sorted(words):
        unknown = [part for part in word.split(".") if part not in known]
        assert not unknown, f"`{word}` in NOTATION.md: nothing in the code is called {', '.join(unknown)}"
