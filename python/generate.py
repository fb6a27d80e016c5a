"""Writes what the package takes from the project's sources: kakeya/_ffi.py, the declarations of the public header for cffi, and
kakeya/v1, the messages of the gRPC interface.

    python generate.py INCLUDE_DIRECTORY PROTO_DIRECTORY TARGET_DIRECTORY
"""

from __future__ import annotations

import os
import re
import sys

HEADERS = ("kakeya.h", "kakeya_study.h")
PROTO = os.path.join("kakeya", "v1", "runtime.proto")


def declarations(include: str) -> str:
    """The header as cffi reads it: types and functions, without the preprocessor's lines and without inline functions."""
    seen: set[str] = set()

    def read(name: str) -> str:
        seen.add(name)
        with open(os.path.join(include, name), encoding="utf-8") as file:
            text = file.read()
        text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
        # A header that another includes is read where it stands.
        return re.sub(r'^\s*#include "(\w+\.h)".*$', lambda m: "" if m[1] in seen else read(m[1]), text, flags=re.M)

    text = read(HEADERS[0])
    for name in HEADERS[1:]:
        if name not in seen:
            text += read(name)
    text = re.sub(r'#ifdef __cplusplus\s(?:extern "C" \{|\})\s#endif', "", text)
    text = re.sub(r"^\s*#.*(?:\\\n.*)*$", "", text, flags=re.M)
    text = re.sub(r"static inline [^{;]*\{.*?\n?\}\n", "", text, flags=re.S)
    text = text.replace("KAKEYA_API ", "")
    return re.sub(r"\n\s*\n+", "\n", text)


def write_ffi(include: str, target: str) -> None:
    import cffi

    ffi = cffi.FFI()
    ffi.set_source("kakeya._ffi", None)
    ffi.cdef(declarations(include))
    ffi.emit_python_code(os.path.join(target, "_ffi.py"))


def write_messages(proto: str, target: str) -> None:
    import grpc_tools
    from grpc_tools import protoc

    common = os.path.join(os.path.dirname(grpc_tools.__file__), "_proto")
    # protoc adds the package's path, kakeya/v1.
    above = os.path.dirname(target)
    arguments = ["protoc", f"-I{proto}", f"-I{common}", f"--python_out={above}", f"--pyi_out={above}",
                 f"--grpc_python_out={above}", PROTO]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    os.makedirs(sys.argv[3], exist_ok=True)
    write_ffi(sys.argv[1], os.path.abspath(sys.argv[3]))
    write_messages(sys.argv[2], os.path.abspath(sys.argv[3]))
