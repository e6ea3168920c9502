"""Mutation testing: change one thing at a time in a module and see whether the tests notice.

    python tools/mutate.py qd_core/runtime/arguments.py qd_core/runtime/launch.py --count 60 -- \
        tests/device/test_conformance.py -x -q -k "kinds or aliased" --qd-backend=fake

Works on a copy of the package, in a temporary folder that stands first on the path (Python 3.11 or later). A mutant
that the tests do not notice is printed with its line: either a test is missing, or the change means nothing.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
"""What an operator is replaced by."""


def mutants(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line, what was changed, changed source) for every single change."""
    tree = ast.parse(source)
    for number, node in enumerate(ast.walk(tree)):
        if getattr(node, "lineno", None) is None:
            continue
        for what, change in changes(node):
            altered = copy.deepcopy(tree)
            target = next(n for i, n in enumerate(ast.walk(altered)) if i == number)
            change(target)
            yield node.lineno, what, ast.unparse(ast.fix_missing_locations(altered))


def changes(node: ast.AST) -> Iterator[tuple[str, object]]:
    """Yield what may be changed in one node."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        new = SWAPS[type(node.ops[0])]
        yield f"{type(node.ops[0]).__name__} to {new.__name__}", lambda n: n.ops.__setitem__(0, new())
    if isinstance(node, (ast.BinOp, ast.BoolOp, ast.AugAssign)) and type(node.op) in SWAPS:
        new = SWAPS[type(node.op)]
        yield f"{type(node.op).__name__} to {new.__name__}", lambda n: setattr(n, "op", new())
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield f"{node.value} to {node.value + 1}", lambda n: setattr(n, "value", n.value + 1)
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        yield f"{node.value} to {not node.value}", lambda n: setattr(n, "value", not n.value)
    if isinstance(node, ast.If):
        yield "condition to its opposite", lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))


def noticed(folder: Path, words: list[str], timeout_s: float) -> bool:
    """Whether the tests fail on the package in ``folder``."""
    paths = {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1", "QD_CACHE_DIR": str(folder / "cache")}
    env = {**os.environ, **paths, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n0", *words]
    try:
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, timeout=timeout_s).returncode != 0
    except subprocess.TimeoutExpired:
        return True


def main() -> int:
    """Mutate, test, and print the score."""
    parser = argparse.ArgumentParser(description="Mutation testing.")
    parser.add_argument("modules", nargs="+", type=Path)
    parser.add_argument("--count", type=int, default=50, help="mutants drawn from each module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds for the tests of one mutant")
    own, words = sys.argv[1:], list[str]()
    if "--" in own:
        own, words = own[: own.index("--")], own[own.index("--") + 1 :]
    options = parser.parse_args(own)
    found = total = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "qd_core", folder / "qd_core", ignore=shutil.ignore_patterns("__pycache__"))
        check = [sys.executable, "-P", "-c", "import qd_core; print(qd_core.__file__)"]
        shown = subprocess.run(check, env={**os.environ, "PYTHONPATH": name}, capture_output=True, text=True).stdout
        if not shown.startswith(name):
            sys.exit(f"the copy is not what is imported: {shown}")
        if noticed(folder, words, options.timeout):
            sys.exit("the tests fail without any change")
        for module in options.modules:
            source = (ROOT / module).read_text(encoding="utf-8")
            drawn = list(mutants(source))
            random.Random(options.seed).shuffle(drawn)
            for line, what, text in drawn[: options.count]:
                (folder / module).write_text(text, encoding="utf-8")
                total += 1
                if noticed(folder, words, options.timeout):
                    found += 1
                else:
                    print(f"not noticed: {module}:{line}: {what}", flush=True)
            (folder / module).write_text(source, encoding="utf-8")
    print(f"{found} of {total} mutants were noticed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
