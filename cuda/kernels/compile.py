"""Compiles the CUDA C files of this folder to PTX, with NVRTC, on any machine.

    python compile.py [--check] LIBNVRTC

LIBNVRTC is the path of libnvrtc.so of CUDA 11.8, the oldest toolkit that will do: its PTX runs on every driver
from 520 on, and on every GPU of compute capability 7.0 or later (8.0 or later for the files that include
mma.cuh). With --check, nothing is written: the exit status says whether the compiled files agree with their
sources.
"""

import ctypes
import hashlib
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
OPTIONS = [b"--std=c++14", b"--fmad=true", b"-default-device"]


def compile_source(nvrtc: ctypes.CDLL, name: str, source: bytes, headers: dict[str, bytes]) -> bytes:
    program = ctypes.c_void_p()
    texts = (ctypes.c_char_p * len(headers))(*headers.values())
    names = (ctypes.c_char_p * len(headers))(*(h.encode() for h in headers))
    check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, name.encode(), len(headers), texts, names))
    # Tensor cores take bfloat16 from 8.0 on; all else runs from 7.0 on.
    target = b"compute_80" if b"mma.cuh" in source else b"compute_70"
    options = (ctypes.c_char_p * (len(OPTIONS) + 1))(*OPTIONS, b"--gpu-architecture=" + target)
    result = nvrtc.nvrtcCompileProgram(program, len(options), options)
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    if log.value.strip():
        print(log.value.decode(), file=sys.stderr)
    check(nvrtc, result)
    check(nvrtc, nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)))
    ptx = ctypes.create_string_buffer(size.value)
    check(nvrtc, nvrtc.nvrtcGetPTX(program, ptx))
    return ptx.value


def check(nvrtc: ctypes.CDLL, result: int) -> None:
    if result != 0:
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        sys.exit(f"compile.py: NVRTC: {nvrtc.nvrtcGetErrorString(result).decode()}")


def main() -> None:
    arguments = [a for a in sys.argv[1:] if a != "--check"]
    if len(arguments) != 1:
        sys.exit(__doc__)
    nvrtc = ctypes.CDLL(arguments[0])
    headers = {path.name: path.read_bytes() for path in sorted(HERE.glob("*.cuh"))}
    drifted = []
    for path in sorted(HERE.glob("*.cu")):
        source = path.read_bytes()
        digest = hashlib.sha256(b"".join(headers.values()) + source).hexdigest()
        ptx = compile_source(nvrtc, path.name, source, headers)
        text = f"// sha256 of the headers and {path.name}: {digest}\n".encode() + ptx
        target = path.with_suffix(".ptx")
        if "--check" in sys.argv:
            if not target.exists() or target.read_bytes() != text:
                drifted.append(target.name)
        else:
            target.write_bytes(text)
            print(f"{target.name}: {len(text)} bytes")
    if drifted:
        sys.exit(f"compile.py: these files differ from their sources: {', '.join(drifted)}; run make kernels")


if __name__ == "__main__":
    main()
