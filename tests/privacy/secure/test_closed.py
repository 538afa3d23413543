"""The server's process never holds what opens a single update: the code is not there."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import offbeat
from offbeat.deploy import masking
from offbeat.privacy.secure import helper, masks

ROOT = Path(offbeat.__file__).parent
ABLE = {masks.__name__, helper.__name__, masking.__name__, "offbeat.deploy.helper_core", "offbeat.deploy.helper"}
ABLE |= {"offbeat.deploy.client"}


def test_serving_imports_no_module_that_could_make_a_mask() -> None:
    code = "import sys, offbeat.deploy.server; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "offbeat.privacy.secure.tickets" in found
    assert not ABLE & {*found}


def test_masks_are_made_for_clients_and_by_the_helper_and_nowhere_else() -> None:
    users = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == masks.__name__:
                users.add(str(path.relative_to(ROOT)))
    own = {"privacy/secure/helper.py", "deploy/helper_core.py", "deploy/masking.py"}
    assert users == {*own, "bench/secure.py"}  # which measures both ends


def test_without_a_secret_key_there_is_nothing_to_make_a_mask_from() -> None:
    """Both classes that make masks need a secret key, and the server has neither a client's nor the helper's."""
    fields = {kind: [*kind.__dataclass_fields__] for kind in (masks.Masker, masks.Unmasker)}
    assert all("secret" in names for names in fields.values())
