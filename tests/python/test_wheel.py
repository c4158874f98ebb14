# SPDX-License-Identifier: Apache-2.0
"""The wheel installs and runs where there is no compiler, no header and no kvtier."""
import email
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROUND_TRIP = Path(__file__).with_name("round_trip.py")


@pytest.fixture(scope="module")
def wheel(request):
    folder = request.config.getoption("--wheels")
    if not folder:
        pytest.skip("no --wheels: not run by tests/python/run")
    (wheel,) = Path(folder).glob("kvtier-*.whl")
    return wheel


def interpreter(version):
    """Python `version`, from PATH or where pyenv keeps it; None."""
    candidates = [shutil.which(f"python{version}")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates += sorted(pyenv.glob(f"versions/{version}.*/bin/python"))
    for candidate in filter(None, candidates):
        # What is in PATH may be a script that looks for the interpreter.
        code = "import sys; print('%d.%d' % sys.version_info[:2]); print(sys.executable)"
        done = subprocess.run([candidate, "-c", code], capture_output=True, text=True)
        if done.stdout.startswith(version):
            return done.stdout.splitlines()[1]
    return None


def test_the_wheel_is_one_for_all_pythons_and_carries_its_libraries(wheel):
    assert re.fullmatch(r"kvtier-[\d.]+-cp311-abi3-manylinux_2_\d+_\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        headers = email.message_from_bytes(archive.read(metadata))
    assert "kvtier/_native.abi3.so" in names and "kvtier/py.typed" in names
    assert "kvtier/libkvtier-cuda.so" in names
    for engine in ("llama_cpp.py", "sglang/backend.py", "transformers/store.py", "vllm/worker.py"):
        assert f"kvtier/{engine}" in names
    carried = {Path(name).name.split("-")[0] for name in names if name.startswith("kvtier.libs/")}
    assert {"libcrypto", "libxxhash"} <= carried
    assert headers["Requires-Python"] == ">=3.11"
    needs = headers.get_all("Requires-Dist")
    assert [line for line in needs if "extra ==" not in line] == ["cffi>=1.15"]
    assert headers.get_all("Provides-Extra") == ["validate"]
    assert "kvtier/validate/templates/report.html" in names


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_wheel_runs_in_a_fresh_environment(wheel, daemon, tmp_path, version):
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    target = tmp_path / "packages"
    # What pip takes is for that interpreter; the environment itself has nothing else.
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", target]
    pip += ["--python-version", version, "--only-binary", ":all:", wheel]
    subprocess.run(pip, check=True)
    environment = {"PATH": "/nonexistent", "PYTHONPATH": str(target)}
    done = subprocess.run(
        [python, "-s", ROUND_TRIP, daemon.socket],
        env=environment,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"ok {version}.")


def test_nothing_of_the_system_but_libc_is_needed(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    native = tmp_path / "kvtier/_native.abi3.so"
    output = subprocess.run(["ldd", native], check=True, capture_output=True, text=True).stdout
    outside = {
        line.split()[0].rsplit("/")[-1]
        for line in output.splitlines()
        if str(tmp_path) not in line and "vdso" not in line
    }
    assert {name.split(".")[0] for name in outside} <= {"libc", "ld-linux-x86-64"}
