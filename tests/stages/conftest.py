"""The command line and its small model, as the tests of the command line have them."""

import importlib.util
from pathlib import Path

_SPEC = importlib.util.spec_from_file_location("cli_conftest", Path(__file__).parents[1] / "cli" / "conftest.py")
assert _SPEC is not None
assert _SPEC.loader is not None
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)
shardplan, folder, mlp = _MODULE.shardplan, _MODULE.folder, _MODULE.mlp
