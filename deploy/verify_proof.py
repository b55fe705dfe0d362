"""Check a proof of `sluice prove`, with Python's standard library alone: python verify_proof.py ROOT PROOF.json

ROOT: the 64 hex digits that the provider has published, in a certificate or a record, and not those in the proof.
What is proved is printed. Exit code 0: the proof holds; 1: it does not; 2: the call is wrong.

The root is the SHA-256 of b"sluice commitment 1", a zero byte and the header ("commitment") as JSON with sorted names
and no blanks. The header names the hash of a Merkle tree (RFC 9162, section 2.1) over leaves sorted by key:

    key   = SHA-256(b"sluice key 1\\0" + header key + kind + b"\\0" + subject)
    rest  = SHA-256(salt + readings, first step and last step, each 8 bytes little-endian)
    inner = SHA-256(key + rest)
    leaf  = SHA-256(b"\\0" + the first head_bits bits of key as a number of 8 bytes + inner)
    node  = SHA-256(b"\\1" + left + right)

A subject is absent if two leaves that are next to each other lie on either side of its key.
"""

import json
import re
import sys
from hashlib import sha256

HEADER = {
    "version": int, "run": str, "checkpoint": str, "step": int, "num_leaves": int, "head_bits": int, "key": str,
    "key_rule": str, "init_from": (str, type(None)), "tree": str,
}  # fmt: skip
PROOF = {
    "version": int, "root": str, "run": str, "kind": str, "subject": str, "present": bool, "commitment": dict,
}  # fmt: skip
PRESENT = {**PROOF, "leaf": dict, "salt": str, "index": int, "path": list}
ABSENT = {**PROOF, "neighbours": list}
LEAF = {"readings": int, "first_step": int, "last_step": int}
NEIGHBOUR = {"index": int, "head": int, "key": (str, type(None)), "rest": str, "path": list}


class RefusedError(Exception): ...


def canonical(row):
    return json.dumps(row, sort_keys=True, separators=(",", ":")).encode()


def check(holds, why):
    if not holds:
        raise RefusedError(why)


def fields(row, types, what):
    """A row with exactly these fields, of these types; a number is a whole one from 0 below 2**64."""
    check(isinstance(row, dict) and row.keys() == types.keys(), f"{what} has other fields than {[*types]}")
    for (name, type_), value in zip(types.items(), map(row.get, types), strict=True):
        is_number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64
        check(is_number if type_ is int else isinstance(value, type_), f"{what}: {name} is {value!r:.40}")
    return row


def digits(text, num_bytes):
    is_hex = re.fullmatch("[0-9a-f]*", str(text)) and len(str(text)) == 2 * num_bytes
    check(is_hex, f"{text!r:.80} is not {2 * num_bytes} hex digits")
    return bytes.fromhex(str(text))


def hash_of(*parts):
    return sha256(b"".join(parts)).digest()


def climb(leaf, index, num_leaves, path):
    """The hash of the tree that has this leaf at `index` (RFC 9162, section 2.1.3.2)."""
    check(index < num_leaves, f"there is no leaf {index} of {num_leaves}")
    at, last, found = index, num_leaves - 1, leaf
    for beside in (digits(text, 32) for text in path):
        check(last, "a path is too long")
        if at & 1 or at == last:
            found = hash_of(b"\1", beside, found)
            while at and not at & 1:
                at, last = at >> 1, last >> 1
        else:
            found = hash_of(b"\1", found, beside)
        at, last = at >> 1, last >> 1
    check(not last, "a path is too short")
    return found


def neighbour(row, header):
    """A leaf beside the key: its number, its head and, where that is shown, its key."""
    fields(row, NEIGHBOUR, "a neighbour")
    inner, key = digits(row["rest"], 32), b""
    if row["key"] is not None:
        key = digits(row["key"], 32)
        inner = hash_of(key, inner)
    leaf = hash_of(b"\0", row["head"].to_bytes(8, "big"), inner)
    found = climb(leaf, row["index"], header["num_leaves"], row["path"])
    check(found == digits(header["tree"], 32), "a neighbour is not in the tree")
    return row["index"], row["head"], key


def verify(root, data):
    """What a proof proves, in a sentence; RefusedError where it does not hold against `root`."""
    try:
        proof = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"it is no JSON: {error}") from None
    check(isinstance(proof, dict) and canonical(proof) + b"\n" == data, "sluice prove writes no such file")
    fields(proof, PRESENT if proof.get("present") is True else ABSENT, "the proof")
    header = fields(proof["commitment"], HEADER, "its commitment")
    check((proof["version"], header["version"]) == (1, 1), "it is of a version that this file does not know")
    found = hash_of(b"sluice commitment 1\0", canonical(header)).hex()
    check(found == proof["root"] == root, f"it is a proof against the root {found}, and not {root}")
    check(proof["run"] == header["run"], "it names another run than its commitment")
    check(proof["kind"] in ("url", "domain", "text"), f"{proof['kind']!r:.40} is no kind of key")
    bits, num_leaves = header["head_bits"], header["num_leaves"]
    check(bits == min(num_leaves.bit_length() + 2, 64), "its commitment has heads of another length")
    subject = proof["subject"].encode("utf-8", "surrogatepass")
    key = hash_of(b"sluice key 1\0", digits(header["key"], 32), proof["kind"].encode(), b"\0", subject)
    head = int.from_bytes(key[:8], "big") >> (64 - bits)
    what, where = f"{proof['kind']} {proof['subject']!r}", f"{header['checkpoint']} of run {header['run']!r}"
    if proof["present"]:
        leaf = fields(proof["leaf"], LEAF, "its leaf")
        rest = hash_of(digits(proof["salt"], 16), *(leaf[name].to_bytes(8, "little") for name in LEAF))
        leaf_hash = hash_of(b"\0", head.to_bytes(8, "big"), hash_of(key, rest))
        found = climb(leaf_hash, proof["index"], num_leaves, proof["path"])
        check(found == digits(header["tree"], 32), "its leaf is not in the tree")
        values = ", ".join(f"{name} {number}" for name, number in leaf.items())
        return f"present in {where}: {what}: {values}"
    beside = [neighbour(row, header) for row in proof["neighbours"]]
    for _, other, shown in beside:
        check(other != head or shown not in (b"", key), "a neighbour is not told apart from the key")
    sides = [(other, shown) < (head, key) for _, other, shown in beside]
    left = beside[0][0] if sides[:1] == [True] else -1
    expected = [(index, index == left) for index in (left, left + 1) if 0 <= index < num_leaves]
    found = [(row[0], side) for row, side in zip(beside, sides, strict=True)]
    check(found == expected, "its neighbours are not beside the key")
    return f"absent from {where}: {what}"


def main(arguments):
    if len(arguments) != 2 or not re.fullmatch("[0-9a-f]{64}", arguments[0]):
        print("usage: python verify_proof.py ROOT PROOF.json   (ROOT: 64 hex digits)", file=sys.stderr)
        return 2
    try:
        with open(arguments[1], "rb") as file:
            print(verify(arguments[0], file.read(1 << 20)))
    except (OSError, RefusedError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1 if isinstance(error, RefusedError) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
