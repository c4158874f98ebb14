# SPDX-License-Identifier: Apache-2.0
from setuptools import setup

# One wheel for every CPython from 3.11 on: cffi keeps to the stable ABI.
setup(
    cffi_modules=["build_ffi.py:ffi", "build_ffi.py:cuda"],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
