"""Large files by xet: what `hf_xet` sends and asks for instead of LFS, as far as the loopback Hub needs it.

huggingface_hub does not fall back to LFS once `hf_xet` is installed, so a Hub without this part refuses its uploads. A
file arrives as chunks packed into xorbs, then a shard says which chunks of which xorbs make up which file; downloads
ask for these terms and fetch the bytes of the xorbs. The server unpacks what it receives and keeps a file only if its
SHA-256 is the announced one. It does not compute xet's own hashes (BLAKE3 is not in the standard library) and has no
global deduplication, so the client sends every chunk it does not know itself.

Source: Xet protocol specification 1.0, https://huggingface.co/docs/xet; LZ4 frame and block formats,
https://github.com/lz4/lz4/tree/dev/doc.
"""

import hashlib
import re
import secrets
import struct
import time
from dataclasses import dataclass, field
from typing import Any

from loopback_http import Answer, HubError, Request, json_answer

ENTRY = 48
"""Bytes of every record of a shard: a hash of 32 bytes and four numbers of 4."""
NONE, LZ4, GROUPED_LZ4 = range(3)
WITH_VERIFICATION, WITH_METADATA = 1 << 31, 1 << 30


@dataclass(frozen=True)
class Term:
    """Chunks `start` to `stop` of a xorb, `size` bytes when unpacked."""

    xorb: str
    size: int
    start: int
    stop: int


@dataclass
class Xorb:
    """The bytes as they came, the chunks in them, and where each begins (with the end of the last one)."""

    packed: bytes
    chunks: list[bytes]
    offsets: list[int]


@dataclass
class XetStore:
    """Xorbs by hash, files by xet's hash, xet's hash by SHA-256, and the scope of every token that was given out."""

    xorbs: dict[str, Xorb] = field(default_factory=dict)
    files: dict[str, list[Term]] = field(default_factory=dict)
    by_sha256: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)


def hash_text(raw: bytes) -> str:
    """The hexadecimal form of a hash: four little-endian words of 8 bytes."""
    return b"".join(raw[place : place + 8][::-1] for place in range(0, 32, 8)).hex()


def unpack_xorb(packed: bytes) -> Xorb:
    """The chunks of a xorb; what follows them (a footer, which begins with another byte than a chunk) is left."""
    chunks: list[bytes] = []
    offsets = [0]
    while offsets[-1] + 8 <= len(packed) and packed[offsets[-1]] == 0:
        place = offsets[-1]
        size = int.from_bytes(packed[place + 1 : place + 4], "little")
        unpacked = int.from_bytes(packed[place + 5 : place + 8], "little")
        chunk = unpack_chunk(packed[place + 8 : place + 8 + size], packed[place + 4])
        if len(chunk) != unpacked:
            raise HubError(400, f"A chunk has {len(chunk)} bytes instead of {unpacked}")
        chunks.append(chunk)
        offsets.append(place + 8 + size)
    return Xorb(packed, chunks, offsets)


def unpack_chunk(packed: bytes, scheme: int) -> bytes:
    if scheme == NONE:
        return packed
    chunk = lz4_frame(packed)
    if scheme == LZ4:
        return chunk
    # Bytes 0, 4, 8, ... came first, then 1, 5, 9, ..., and so on.
    apart, place = bytearray(len(chunk)), 0
    for group in range(4):
        size = len(range(group, len(chunk), 4))
        apart[group::4] = chunk[place : place + size]
        place += size
    return bytes(apart)


def lz4_frame(packed: bytes) -> bytes:
    if packed[:4] != b"\x04\x22\x4d\x18":
        raise HubError(400, "A chunk is no LZ4 frame")
    flags = packed[4]
    # Magic, flags, block size and header checksum; a length of 8 and a dictionary of 4 bytes if the flags say so.
    place = 7 + (8 if flags & 8 else 0) + (4 if flags & 1 else 0)
    plain = bytearray()
    while size := int.from_bytes(packed[place : place + 4], "little"):
        stored, size = size >> 31, size & 0x7FFFFFFF
        block = packed[place + 4 : place + 4 + size]
        if stored:
            plain += block
        else:
            lz4_block(block, plain)
        place += 4 + size + (4 if flags & 16 else 0)
    return bytes(plain)


def lz4_block(packed: bytes, plain: bytearray) -> None:
    """Appends the block's content to `plain`: literals, then a copy of what came `distance` bytes before, and so on."""

    def length(nibble: int, place: int) -> tuple[int, int]:
        while nibble >= 15 and packed[place] == 255:
            nibble, place = nibble + 255, place + 1
        return (nibble + packed[place], place + 1) if nibble >= 15 else (nibble, place)

    place = 0
    while place < len(packed):
        token = packed[place]
        literals, place = length(token >> 4, place + 1)
        plain += packed[place : place + literals]
        place += literals
        if place >= len(packed):
            return
        distance = int.from_bytes(packed[place : place + 2], "little")
        copied, place = length(token & 15, place + 2)
        copied += 4
        window = bytes(plain[len(plain) - distance :])
        plain += (window * (copied // distance + 1))[:copied]


def read_shard(shard: bytes) -> list[tuple[str, list[Term], str]]:
    """The files of a shard: xet's hash, terms, SHA-256. The list of xorbs behind them is of no use here."""
    files = []
    place = ENTRY
    while place + ENTRY <= len(shard) and shard[place : place + 32] != b"\xff" * 32:
        name = hash_text(shard[place : place + 32])
        flags, count = struct.unpack_from("<II", shard, place + 32)
        place += ENTRY
        terms = []
        for _ in range(count):
            _, size, start, stop = struct.unpack_from("<IIII", shard, place + 32)
            terms.append(Term(hash_text(shard[place : place + 32]), size, start, stop))
            place += ENTRY
        if flags & WITH_VERIFICATION:
            place += count * ENTRY
        if not flags & WITH_METADATA:
            raise HubError(400, f"No SHA-256 for file {name}")
        files.append((name, terms, hash_text(shard[place : place + 32])))
        place += ENTRY
    return files


# Answers: `access_token` on the Hub, the others on the storage. `loopback_api` gives them their addresses.


def access_token(hub: Any, request: Request, scope: str) -> Answer:
    """What the client needs to talk to the storage: where, with which token, until when."""
    if not hub.xet:
        raise HubError(404, "This Hub has no xet storage")
    token, end = f"xet_{secrets.token_hex(16)}", int(time.time()) + 900
    hub.xet_store.tokens[token] = scope
    content = {"accessToken": token, "casUrl": hub.storage, "exp": end}
    headers = {"X-Xet-Cas-Url": hub.storage, "X-Xet-Access-Token": token, "X-Xet-Token-Expiration": str(end)}
    return json_answer(content, headers=headers)


def check_token(hub: Any, request: Request, *scopes: str) -> None:
    token = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if token not in hub.xet_store.tokens:
        raise HubError(401, "Not a token of this storage")
    if hub.xet_store.tokens[token] not in scopes:
        raise HubError(403, f"The token is not for {' or '.join(scopes)}")


def upload_xorb(hub: Any, request: Request, name: str) -> Answer:
    check_token(hub, request, "write")
    known = name in hub.xet_store.xorbs
    hub.xet_store.xorbs[name] = unpack_xorb(request.body)
    return json_answer({"was_inserted": not known})


def upload_shard(hub: Any, request: Request) -> Answer:
    """Registers files whose chunks are here, and puts their contents where LFS objects lie."""
    check_token(hub, request, "write")
    store = hub.xet_store
    for name, terms, sha256 in read_shard(request.body):
        if any(term.xorb not in store.xorbs for term in terms):
            raise HubError(400, f"A xorb of file {name} was not uploaded")
        content = b"".join(b"".join(store.xorbs[term.xorb].chunks[term.start : term.stop]) for term in terms)
        if hashlib.sha256(content).hexdigest() != sha256:
            raise HubError(400, f"The SHA-256 of file {name} is not the announced one")
        store.files[name] = terms
        store.by_sha256[sha256] = name
        hub.objects[sha256] = content
    return json_answer({"result": 1})


def reconstruction(hub: Any, request: Request, name: str) -> Answer:
    """The terms of a file, or of the part of it that `Range` asks for, and where their bytes are."""
    check_token(hub, request, "read", "write")
    store = hub.xet_store
    if name not in store.files:
        raise HubError(404, "File not found")
    wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", "bytes=0-"))
    start = int(wanted[1]) if wanted else 0
    stop = int(wanted[2]) + 1 if wanted and wanted[2] else None
    terms, skipped, place = [], 0, 0
    for term in store.files[name]:
        if place + term.size <= start:
            skipped = place + term.size
        elif stop is None or place < stop:
            terms.append(term)
        place += term.size
    if start >= place > 0:
        raise HubError(416, "Range not satisfiable")
    fetch = {xorb: fetch_ranges(hub, xorb, terms) for xorb in {term.xorb for term in terms}}
    listed = [
        {"hash": term.xorb, "unpacked_length": term.size, "range": {"start": term.start, "end": term.stop}}
        for term in terms
    ]
    return json_answer({"offset_into_first_range": start - skipped, "terms": listed, "fetch_info": fetch})


def fetch_ranges(hub: Any, xorb: str, terms: list[Term]) -> list[dict[str, Any]]:
    """The chunks of a xorb that the terms need and their bytes; ranges that touch are one, as the client relies on."""
    merged: list[list[int]] = []
    for start, stop in sorted((term.start, term.stop) for term in terms if term.xorb == xorb):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(stop, merged[-1][1])
        else:
            merged.append([start, stop])
    offsets = hub.xet_store.xorbs[xorb].offsets
    return [
        {
            "range": {"start": start, "end": stop},
            "url": hub.signed(f"/xorbs/{xorb}"),
            "url_range": {"start": offsets[start], "end": offsets[stop] - 1},
        }
        for start, stop in merged
    ]
