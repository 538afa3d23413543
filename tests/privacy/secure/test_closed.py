"""The server's process never holds what opens a single update: the code is not there."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
from rounds import called, own_mask, pair_mask
from slow_crypto import x25519

import offbeat
from offbeat.deploy import masking, taking_part
from offbeat.privacy.secure import helper, masks, member, opening

ROOT = Path(offbeat.__file__).parent
ABLE = {masks.__name__, helper.__name__, masking.__name__, "offbeat.deploy.helper_core", "offbeat.deploy.helper"}
ABLE |= {"offbeat.deploy.client", "offbeat.deploy.client_core", member.__name__, taking_part.__name__}


def test_serving_imports_no_module_that_could_make_a_mask() -> None:
    code = "import sys, offbeat.deploy.server; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "offbeat.privacy.secure.tickets" in found
    assert not ABLE & {*found}


def users_of(module: str) -> set[str]:
    """The files that import from it."""
    users = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == module:
                users.add(str(path.relative_to(ROOT)))
    return users - {"bench/secure.py", "bench/cohort.py"}  # which measure all ends


def test_masks_are_made_for_clients_and_by_the_helper_and_nowhere_else() -> None:
    assert users_of(masks.__name__) == {"privacy/secure/helper.py", "deploy/helper_core.py", "deploy/masking.py"}
    assert users_of(member.__name__) == {"deploy/masking.py", "deploy/taking_part.py"}


def test_a_server_makes_masks_from_what_members_give_away_and_from_nothing_else() -> None:
    """One function, which takes no secret of anybody's: shares only, for each member of one of two kinds."""
    assert users_of(opening.__name__) == {"deploy/cohorts.py"}
    assert [*opening.left_masks.__annotations__] == ["call", "survivors", "dropped", "answers", "return"]


def test_all_that_a_log_holds_of_a_cohort_opens_no_single_update() -> None:
    """Every message of its members together, for each of them: its own mask comes off, its pairs do not."""
    made = called(6, dim=64)
    survivors, dropped, q = range(5), [5], np.arange(64, dtype=np.uint32)
    heard = [made.hear(place, range(6)) for place in range(6)]
    sent = {place: heard[place].masked(q) for place in survivors}
    answers = {place: heard[place].answer(survivors, dropped)[1] for place in survivors}
    total = sum(sent.values()) - opening.left_masks(made.call, survivors, dropped, answers)  # type: ignore[operator]
    assert np.array_equal(total, 5 * q)
    known = {place: own_mask(made.call, heard[place].seed) for place in survivors}  # the answers give these seeds,
    key = heard[5].mask  # and this key
    for place in survivors:
        pair = pair_mask(made.call, x25519(key, made.call.members[place].mask), place, 5)
        left = sent[place] - known[place] - pair - q
        assert np.count_nonzero(left) == 64  # the pairs with the other survivors, whose keys nobody gives away
    for place in survivors:  # their shares of mask keys are nowhere in the answers
        for other in survivors:
            assert heard[place].shares[other][1] not in answers[place]


def test_without_a_secret_key_there_is_nothing_to_make_a_mask_from() -> None:
    """Both classes that make masks need a secret key, and the server has neither a client's nor the helper's."""
    fields = {kind: [*kind.__dataclass_fields__] for kind in (masks.Masker, masks.Unmasker)}
    assert all("secret" in names for names in fields.values())
