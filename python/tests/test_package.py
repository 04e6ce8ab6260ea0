"""The package as a whole: what it imports, what it types, what its documentation promises."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import scaledmm

ROOT = Path(__file__).parents[2]
RECIPES = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL)


def test_it_imports_without_any_array_framework():
    script = "import scaledmm, sys; sys.exit(any(m in sys.modules for m in ('numpy', 'torch', 'ml_dtypes', 'jax')))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_every_public_name_is_there_and_documented():
    for name in scaledmm.__all__:
        value = getattr(scaledmm, name)
        if name not in ("DTypeLike", "LayerConfig"):
            assert value.__doc__, name
    assert scaledmm.__version__ == scaledmm.version()


def test_the_typed_stub_is_that_of_the_module(tmp_path):
    pytest.importorskip("nanobind")
    patterns, stub = ROOT / "python/stub_patterns.txt", tmp_path / "_core.pyi"
    generator = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "scaledmm._core"]
    subprocess.run([*generator, "-p", str(patterns), "-o", str(stub)], check=True)
    assert stub.read_text() == (ROOT / "python/scaledmm/_core.pyi").read_text(), "tools/python_stub.sh writes it anew"


def test_the_stub_is_python():
    names = {
        node.name
        for node in ast.parse((ROOT / "python/scaledmm/_core.pyi").read_text()).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    assert {"Linear", "Array", "explain"} <= names


@pytest.mark.parametrize("recipe", [r for r in RECIPES if "torch" not in r], ids=lambda r: r.strip().splitlines()[0])
def test_the_recipes_of_the_documentation_run(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(recipe, "docs/python.md", "exec"), {})  # noqa: S102
