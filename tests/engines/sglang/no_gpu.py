# SPDX-License-Identifier: Apache-2.0
"""Lets sglang be imported on a machine without a GPU: import this before it.

sglang imports kernel packages that exist for GPUs only, or install for them only. Those named
here, where they are not installed, are modules of which everything may be taken, called,
inherited from or used as a decorator, and which do nothing.
"""
import importlib.abc
import importlib.machinery
import sys
import types

import torch._inductor.compile_fx
import torch._inductor.select_algorithm
import torch.utils._triton
import transformers.utils.import_utils as hub

ABSENT = {
    "IPython", "compressed_tensors", "cuda", "flash_attn", "flashinfer", "gguf", "pynvml",
    "sgl_kernel", "soundfile", "torch_memory_saver", "torchcodec", "torchvision", "triton",
    "tvm_ffi",
}  # fmt: skip

# Both look once, and are to see what really is there.
torch.utils._triton.has_triton_package()
for look in [name for name in dir(hub) if name.startswith("is_") and name.endswith("_available")]:
    try:
        getattr(hub, look)()
    except (TypeError, ImportError):
        pass


class Kind(type):
    """Of a class in an absent module: an attribute of it is something absent again."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __or__(cls, other):
        return cls

    __ror__ = __or__


class Nothing(metaclass=Kind):
    def __init__(self, *arguments, **options):
        pass

    def __call__(self, *arguments, **options):
        # As a decorator it leaves alone what it decorates.
        decorates = len(arguments) == 1 and callable(arguments[0]) and not options
        return arguments[0] if decorates else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __getitem__(self, key):
        return self

    def __mro_entries__(self, bases):
        return (object,)

    def __or__(self, other):
        return self

    __ror__ = __or__


class AbsentModule(types.ModuleType):
    __path__: list = []
    __version__ = "0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Kind(name, (Nothing,), {}) if name[0].isupper() else Nothing()


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return AbsentModule(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(Absent())  # last: what is installed wins
