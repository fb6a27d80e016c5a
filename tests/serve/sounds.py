"""Sounds for requests, made here."""

import base64
import math
import random
import struct


def wav(seconds, rate=16000, changed=None, channels=1):
    """A WAV file of noise; `changed` is a sample that is another one."""
    n = round(seconds * rate) * channels
    noise = bytearray(random.Random(f"{n} {rate}").randbytes(2 * n))
    if changed is not None:
        noise[2 * changed + 1] ^= 64
    return header(len(noise), rate, channels) + bytes(noise)


def header(data_bytes, rate=16000, channels=1):
    """What stands before so many bytes of samples of 16 bits."""
    return (b"RIFF" + struct.pack("<I", 36 + data_bytes) + b"WAVEfmt " +
            struct.pack("<IHHIIHH", 16, 1, channels, rate, 2 * rate * channels, 2 * channels, 16) +
            b"data" + struct.pack("<I", data_bytes))


def _crc(data, bits, polynomial):
    value = 0
    for byte in data:
        value ^= byte << (bits - 8)
        for _ in range(8):
            value = ((value << 1) ^ (polynomial if value >> (bits - 1) else 0)) & ((1 << bits) - 1)
    return value


def flac_bomb(seconds, rate=16000):
    """Seconds of silence, a dozen bytes for 32,768 samples, in a FLAC file that does not say how long it is."""
    size = 32768
    out = b"fLaC" + b"\x80\x00\x00\x22" + struct.pack(">HH", size, size) + bytes(6) + struct.pack(">Q", rate << 44 | 15 << 36) + bytes(16)
    for number in range(math.ceil(seconds * rate / size)):
        coded = chr(number).encode()
        head = b"\xff\xf8\xf5\x08" + coded  # 2**15 samples at 16 kHz, one channel of 16 bits
        head += bytes([_crc(head, 8, 0x07)])
        frame = head + b"\x00\x00\x00"  # a subframe of one value
        out += frame + struct.pack(">H", _crc(frame, 16, 0x8005))
    return out


def part(data, name="wav"):
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": name}}
