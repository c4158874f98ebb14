# SPDX-License-Identifier: Apache-2.0
"""Compiles kvtier._native from kvtier.h itself, so that Python and C cannot drift apart.

pkg-config says where header and library are: an installed kvtier, or a build folder with
PKG_CONFIG_PATH=build/meson-uninstalled. The static library is preferred: the extension
then needs no libkvtier.so at run time.
"""
import re
import shlex
import subprocess
from pathlib import Path

from cffi import FFI


def pkg_config(*arguments: str) -> str:
    command = ["pkg-config", *arguments, "kvtier"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(
            f"kvtier is not installed: {shlex.join(command)}: {done.stderr.strip()}\n"
            "Run `meson install -C build`, or set PKG_CONFIG_PATH=build/meson-uninstalled."
        )
    return done.stdout.strip()


def declarations(header: str) -> str:
    """What cffi reads: the header without comments and preprocessor, its numeric macros kept."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    macros = re.findall(r"^#define (KVT_\w+)\s+(?:\(1u|\d)", text, flags=re.M)
    text = re.sub(r'^#if(n?def|) *(defined\()?__cplusplus\)?.*?^#endif', "", text, flags=re.S | re.M)
    text = re.sub(r"^#(?:\\\n|.)*$", "", text, flags=re.M)
    text = text.replace("KVT_API ", "")
    return "\n".join(f"#define {name} ..." for name in macros) + text


def link_arguments() -> list:
    flags = shlex.split(pkg_config("--libs", "--static"))
    folders = [flag[2:] for flag in flags if flag.startswith("-L")]
    folders.append(pkg_config("--variable=libdir"))
    for folder in folders:
        archive = Path(folder) / "libkvtier.a"
        if archive.exists():
            rest = [f for f in flags if f != "-lkvtier" and not f.endswith("libkvtier.so")]
            return [str(archive), *rest]
    return flags


def find_header(flags: list) -> Path:
    folders = [flag[2:] for flag in flags if flag.startswith("-I")] + ["/usr/include"]
    for folder in folders:
        if (Path(folder) / "kvtier.h").exists():
            return Path(folder) / "kvtier.h"
    raise SystemExit("kvtier.h is in none of: " + ", ".join(folders))


cflags = shlex.split(pkg_config("--cflags"))
header = find_header(cflags)
link = link_arguments()
ffi = FFI()
ffi.cdef(declarations(header.read_text()))
ffi.set_source(
    "kvtier._native",
    '#include "kvtier.h"\n',
    extra_compile_args=[*cflags, f"-I{header.parent}"],
    extra_link_args=link,
    depends=[str(header), *(argument for argument in link if argument.endswith(".a"))],
)
