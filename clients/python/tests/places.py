"""Where things are: the specification, this package, the service under test."""

import pathlib

PACKAGE = pathlib.Path(__file__).resolve().parents[1]
ROOT = PACKAGE.parents[1]
SPEC = ROOT / "spec"
