# SPDX-License-Identifier: Apache-2.0
"""Compiles kvtier._native from kvtier.h itself, so that Python and C cannot drift apart.

pkg-config says where header and library are. For a kvtier that is not installed (see
build-wheel): PKG_CONFIG_PATH=BUILD/meson-private, KVTIER_LIBDIR=BUILD/client,
KVTIER_INCLUDEDIR=SOURCE/client and KVTIER_CUDA_INCLUDEDIR=SOURCE/cuda. The static library is
preferred: the extension then needs no libkvtier.so at run time.

kvtier._cuda, from kvtier-cuda.h, is declarations alone: libkvtier-cuda is looked for at run
time.
"""
import os
import re
import shlex
import subprocess
from pathlib import Path

from cffi import FFI


def pkg_config(*arguments: str) -> str:
    places = [
        f"--define-variable={name}={os.environ['KVTIER_' + name.upper()]}"
        for name in ("libdir", "includedir")
        if "KVTIER_" + name.upper() in os.environ
    ]
    command = ["pkg-config", *places, *arguments, "kvtier"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(
            f"{shlex.join(command)}: {done.stderr.strip()}\n"
            "kvtier is not installed: run `meson install -C build` first."
        )
    return done.stdout.strip()


def declarations(header: str) -> str:
    """What cffi reads: the header without comments and preprocessor, its numeric macros kept."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    macros = re.findall(r"^#define (KVT_\w+)\s+(?:\(1u|\d)", text, flags=re.M)
    text = re.sub(r"^#if(?:def)? *__cplusplus.*?^#endif", "", text, flags=re.S | re.M)
    text = re.sub(r"^#(?:\\\n|.)*$", "", text, flags=re.M)
    text = text.replace("KVT_API ", "")
    return "\n".join(f"#define {name} ..." for name in macros) + text


def numbers(header: str) -> str:
    """The header's macros that are numbers, worked out."""
    macros = re.findall(r"^#define (KVT_\w+)\s+\(?(\d+)u?(?: << (\d+)\))?", header, flags=re.M)
    return "\n".join(f"#define {name} {int(n) << int(by or 0)}" for name, n, by in macros)


def link_arguments() -> list:
    flags = shlex.split(pkg_config("--libs", "--static"))
    archive = Path(pkg_config("--variable=libdir")) / "libkvtier.a"
    if archive.exists():
        return [str(archive), *(flag for flag in flags if flag != "-lkvtier")]
    return flags


def functions(source: str) -> str:
    """Declarations of the functions that a header of ours defines."""
    text = re.sub(r"/\*.*?\*/", "", source, flags=re.S)
    return ";\n".join(re.findall(r"^static (.*?\))\n\{", text, flags=re.S | re.M)) + ";"


here = Path(__file__).parent
header = Path(pkg_config("--variable=includedir")) / "kvtier.h"
link = link_arguments()
ffi = FFI()
ffi.cdef(declarations(header.read_text()))
ffi.cdef(functions((here / "arrays.h").read_text()))
ffi.set_source(
    "kvtier._native",
    '#include "arrays.h"\n',
    extra_compile_args=[f"-I{header.parent}", f"-I{here}"],
    extra_link_args=link,
    depends=[str(header), str(here / "arrays.h"), *(x for x in link if x.endswith(".a"))],
)

cuda_folder = os.environ.get("KVTIER_CUDA_INCLUDEDIR", str(header.parent))
cuda_header = (Path(cuda_folder) / "kvtier-cuda.h").read_text()
cuda = FFI()
# No compiler sees these: macros are plain numbers, a status of kvtier.h is the number it is.
cuda.cdef(
    numbers(cuda_header)
    + re.sub(r"^#define.*$", "", declarations(cuda_header), flags=re.M).replace(
        "enum kvt_status", "int"
    )
)
cuda.set_source("kvtier._cuda", None)
