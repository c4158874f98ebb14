# SPDX-License-Identifier: Apache-2.0
"""The package does without engines; what needs one says which."""
import importlib
import sys

import pytest


def test_kvtier_does_not_import_engines():
    import kvtier  # noqa: F401

    assert not {"torch", "transformers", "llama_cpp", "sglang"} & set(sys.modules)


def test_missing_transformers_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="kvtier.transformers needs torch and transformers"):
        importlib.import_module("kvtier.transformers")


def test_missing_llama_cpp_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(ImportError, match="kvtier.llama_cpp needs llama-cpp-python"):
        importlib.import_module("kvtier.llama_cpp")


def test_missing_sglang_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sglang", None)
    with pytest.raises(ImportError, match="kvtier.sglang needs torch and sglang"):
        importlib.import_module("kvtier.sglang")
