"""Generates the same tokens as stream.go from the same seed."""

import zlib

import numpy as np


def mix(x: np.ndarray) -> np.ndarray:
    """Hash each uint64 as SplitMix64 does: one increment, then the finaliser."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def skewed(h: np.ndarray, vocab: int) -> np.ndarray:
    """Turn hashes into numbers below vocab that are distributed as the fourth power of a uniform one."""
    r = h >> np.uint64(44)
    r = (r * r) >> np.uint64(20)
    r = (r * r) >> np.uint64(20)
    return (r * np.uint64(vocab)) >> np.uint64(20)


def samples(seed: int, count: int, context: int, vocab: int) -> np.ndarray:
    """Return the first samples of the stream: count rows of context+1 tokens, int32."""
    key = mix(np.array([seed], np.uint64)) + (np.arange(count, dtype=np.uint64) << np.uint64(32))
    tokens = np.empty((count, context + 1), np.uint64)
    for j in range(context + 1):
        h = mix(key + np.uint64(j))
        if j > 0:
            h = np.where(h & np.uint64(1), h, mix(tokens[:, j - 1]))
        tokens[:, j] = skewed(h, vocab)
    return tokens.astype("<i4")


def checksum(tokens: np.ndarray) -> int:
    """Return the CRC-32 of all tokens as little-endian int32."""
    return zlib.crc32(np.ascontiguousarray(tokens, "<i4").tobytes())
