"""What refusals say, word for word, is what `messages.json` says.

Where a message is to change, or one is new:

    python -m tests.test_messages > tests/messages.json
"""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from pyg_basisconv import compose
from tests import test_testing as actions
from tests.algebra import test_compose as compositions, test_decompose as decompositions, test_gram as grams
from tests.bases import test_bad_input as calls, test_relations as relations, test_wavelets as wavelets
from tests.bases.grids import test_bad_input as grids
from tests.hetero import test_conv as hetero
from tests.mechanisms import test_bad_input as mechanisms
from tests.recurrent import test_cells as cells, test_sequences as sequences
from tests.theta import test_theta as thetas
from tests.walks import test_walks as walks

FILE = Path(__file__).with_name("messages.json")
TABLES: dict[str, dict[str, Any]] = {
    "bases": calls.CALLS | calls.FIXES,
    "relations": relations.REFUSED,
    "wavelets": wavelets.BAD,
    "grids": grids.CALLS,
    "mechanisms": mechanisms.CALLS,
    "theta": thetas.REFUSED,
    "walks": walks.REFUSED,
    "hetero": hetero.BAD,
    "calls of hetero": {name: (partial(hetero.layer(3), *call),) for name, (call, _) in hetero.CALLS.items()},
    "decompose": decompositions.BAD,
    "gram": grams.BAD,
    "compose": {name: (lambda a=a, b=b: compose(a(), b()),) for name, (a, b, _) in compositions.BAD.items()},
    "actions": {f"{i}, {argument}": (make,) for i, (make, argument) in enumerate(actions.BAD)},
    "cells": cells.FAULTY,
    "sequences": sequences.FAULTY,
}


def said(call: Callable[[], Any]) -> str:
    torch.default_generator.manual_seed(0)
    with pytest.raises((ValueError, NotImplementedError)) as caught:
        call()
    return re.sub("0x[0-9a-f]+", "0x...", str(caught.value))


def messages(table: str) -> dict[str, str]:
    """Each case of a table holds one call."""
    return {name: said(next(filter(callable, case))) for name, case in TABLES[table].items()}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_messages(table: str) -> None:
    expected = json.loads(FILE.read_text(encoding="utf-8"))
    assert messages(table) == expected[table]


if __name__ == "__main__":
    print(json.dumps({table: messages(table) for table in TABLES}, indent=1, ensure_ascii=False))
