"""Policy that the design states: the direction of imports, what may be committed, and names."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("kernels", "methods", "tasks", "harness")
ALLOWED = {"kernels": set(), "methods": {"kernels"}, "tasks": set(), "harness": {"kernels", "methods", "tasks"}}


HARNESS = (
    "core",
    "zoo",
    "models",
    "measures",
    "engines",
    "run",
    "tables",
    "exact",
    "advise",
    "papers",
    "gpu",
    "report",
    "cli",
)  # each imports only leftward


def sources(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf8"))
    modules = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {module.split(".")[0] for module in modules}


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_in_one_direction(room: str) -> None:
    files = sources(room)
    assert len(files) >= 2
    for path in files:
        foreign = (imported(path) & set(ROOMS)) - ALLOWED[room] - {room}
        assert not foreign, f"{path.relative_to(ROOT)} imports {foreign}"


def first_party(path: Path) -> list[tuple[str, bool]]:
    """Every import of a module of ours, as a dotted name, and whether it stands inside a function. Types are not left out."""
    found, tree = [], ast.parse(path.read_text(encoding="utf8"))
    inside = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found += [(name, id(node) in inside) for name in names if name.split(".")[0] in ROOMS]
    return found


def test_the_harness_imports_only_downward() -> None:
    folders = {path.name for path in (ROOT / "harness").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(HARNESS)
    assert {path.name for path in (ROOT / "harness").glob("*.py")} == {"__init__.py", "__main__.py"}
    checked = 0
    for room in HARNESS:
        for path in sources(f"harness/{room}"):
            for name, is_inside in first_party(path):
                other = name.split(".")[1] if name.startswith("harness.") else None
                if other in HARNESS:
                    checked += 1
                    assert HARNESS.index(other) <= HARNESS.index(room), f"{path.relative_to(ROOT)} imports {name}"
                    hidden = is_inside and other != room and room != "cli"
                    assert not hidden, f"{path.relative_to(ROOT)} imports {name} inside a function, which cli alone does"
    assert checked > 500


def test_every_package_says_what_lives_there() -> None:
    packages = [path for room in ROOMS for path in (ROOT / room).rglob("__init__.py")]
    assert len(packages) > 20
    for path in packages:
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf8"))), path.relative_to(ROOT)


def test_kernels_is_not_mistaken_for_the_package_of_that_name() -> None:
    assert "__version__" not in (ROOT / "kernels" / "__init__.py").read_text(encoding="utf8")
    assert '"kernels' not in (ROOT / "pyproject.toml").read_text(encoding="utf8").split("[project.scripts]")[0]


def test_nothing_names_this_machine() -> None:
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")
    files = [ROOT / name for name in listed if name and (ROOT / name).is_file()]
    assert len(files) > 50
    home = str(Path.home())
    for path in files:
        text = path.read_bytes().decode("utf8", errors="replace")
        assert f"{ROOT.parent}/" not in text, path
        assert home == "/" or f"{home}/" not in text, path


def test_floors_are_no_higher_than_promised() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    floors = {line.split(">=")[0]: line.split(">=")[1].split(";")[0].strip() for line in project["dependencies"]}
    promised = {"torch": "2.11", "transformers": "5.17", "triton": "3.6"}
    assert project["requires-python"] == ">=3.11"
    for name, version in promised.items():
        assert tuple(map(int, floors[name].split("."))) <= tuple(map(int, version.split(".")))
