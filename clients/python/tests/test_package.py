"""The package itself: what it contains, what it needs, and that it can be read by the oldest Python it promises."""

import ast
import shutil
import subprocess
import sys
import zipfile

import pytest

from places import PACKAGE

FILES = sorted((PACKAGE / "src" / "semel").rglob("*.py"))
DRIVERS = {"psycopg", "psycopg_pool", "asyncpg", "sqlalchemy", "django", "starlette", "httpx", "requests", "fastapi"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_oldest_python_reads_it(file):
    tree = ast.parse(file.read_text(), feature_version=(3, 9))
    assert ast.get_docstring(tree), "a file opens by saying what it owns"
    assert len(file.read_text().splitlines()) <= 400
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno - node.lineno <= 70, f"{node.name} does not fit a screen"


def test_importing_it_needs_nothing_but_python():
    program = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {DRIVERS!r}:
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import semel, semel.asgi
assert semel.once and semel.retrying
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_wheel_holds_the_package_and_nothing_else(tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(copy)]
    subprocess.run(command, check=True)
    (wheel,) = tmp_path.glob("semel-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    top = {name.split("/")[0] for name in names}
    assert top == {"semel", f"semel-{wheel.name.split('-')[1]}.dist-info"}
    assert "semel/py.typed" in names and "semel/drivers/django.py" in names
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert required == [] and "Requires-Python: >=3.9" in metadata
