# SPDX-License-Identifier: Apache-2.0
"""Names are the same in every process: what was stored before an upgrade is found after it.

When one of these changes, all that vLLM has stored is lost to those who upgrade.
"""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GOLDEN = {
    "sha256": {
        "plain": (
            "fe8fa5dda3210d0ca2031e37cbe3b001186773cd1c710beb2d45fcb51d434798"
            "8be7aaa33831156d316f1f463ae57e643deb63f42e633e2d631df88815cc4629"
        ),
        "salted": (
            "becd92828345ee4d06c1166c27360c470049395b0ebb51ca69a627dee601d952"
            "72d66b959e1e2aca8ba15f182316a6ab7fa18c98509fd4a295beb61500ef1e0e"
        ),
        "lora": (
            "177ac8e87feb1135fe1e60b2a78aa3d6c9a65146332f307f356811805372cbe5"
            "14d2736e90eee922580a92a602f38b1a9a5fb06c9e8e384466533fa8e4751c60"
        ),
    },
    "sha256_cbor": {
        "plain": (
            "dc918a88b139e5afe60b88eda27508d4aee16c10fdc354791efea06206ac0749"
            "c300ec275d7bf08af8fc63e76cdc0086911bbc7091e03c5cf892553bef84ef0c"
        ),
        "salted": (
            "18b0eee824a2c0ff128d73b39b296a7fe8292500e884e10f6aaa53877cd09e01"
            "2f48b89d8981af9a4cbc85b33f333d74d34a7f4a281229fad437a4f19740d544"
        ),
        "lora": (
            "c056de579de495786eabf417eeb6556eea73be93912ccca0b86141864f505d3a"
            "5f8588ded2561661e49b4b8317a660f3200fdf5f6ac5c354c15dbab46e2299a1"
        ),
    },
    "layout": "29aa37012992ecd2bf7eaa6593720727ff8164041f789761d1d31d719a939e13",
    "pool": "ea0ef581c6602f00963ba05b236533f06605328ec99ff9d19e806fdada401ed6",
}


@pytest.mark.parametrize("seed, ranks", [("1", "01"), ("4294967295", "10")])
def test_names_do_not_depend_on_process_hash_seed_or_rank_order(daemon, seed, ranks):
    script = Path(__file__).with_name("golden.py")
    result = subprocess.run(
        [sys.executable, script, daemon.socket, *ranks],
        env={**os.environ, "PYTHONHASHSEED": seed},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    assert json.loads(result.stdout.splitlines()[-1]) == GOLDEN
