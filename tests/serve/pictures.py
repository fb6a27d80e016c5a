"""Pictures for requests, made here."""

import base64
import random
import struct
import zlib


def png(width, height, changed=None):
    """A picture of noise; `changed` is a pixel that is another one."""
    noise = random.Random(f"{width} {height}")
    rows = bytearray()
    for y in range(height):
        row = bytearray(noise.randbytes(3 * width))
        if changed and changed[1] == y:
            row[3 * changed[0]] ^= 255
        rows += b"\0" + row

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(bytes(rows), 1)) + chunk(b"IEND", b""))


def uri(data, kind="image/png"):
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def picture(data, **more):
    return {"type": "image_url", "image_url": {"url": uri(data), **more}}


def text(words):
    return {"type": "text", "text": words}


def user(*parts):
    return {"role": "user", "content": list(parts)}
