"""A hash of a folder's weights: what changes it, and that it hangs on nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineage.storage.folder import Folder
from trainer.huggingface import weights_hash as hashing
from trainer.huggingface.weights_hash import stretch_hashes, weights_hash

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def folder_of(path: Path, **files: bytes) -> Folder:
    folder = Folder(str(path))
    for name, content in files.items():
        folder.publish(name, content)
    return folder


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, 40), min_size=2, max_size=2), ranks=st.integers(1, 9), data=st.data())
def test_ranks_that_share_the_stretches_find_the_hash_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], ranks: int, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hashing, "_STRETCH_BYTES", 8)
        patched.setattr(hashing, "_READ_BYTES", 3)
        first, second = (data.draw(st.binary(min_size=size, max_size=size)) for size in sizes)
        folder = folder_of(tmp_path_factory.mktemp("hf"), **{FIRST: first, SECOND: second, "notes.txt": b"x"})
        shares = [stretch_hashes(folder, part=rank, num_parts=ranks) for rank in range(ranks)]
        assert sum(map(len, shares)) == -(-len(first) // 8) + -(-len(second) // 8)
        together = {place: found for share in reversed(shares) for place, found in share.items()}
        whole = weights_hash(stretch_hashes(folder))
        assert weights_hash(together) == whole
        folder.publish("notes.txt", b"y")
        assert weights_hash(stretch_hashes(folder)) == whole
        if first:
            at = data.draw(st.integers(0, len(first) - 1))
            folder.publish(FIRST, first[:at] + bytes([first[at] ^ 1]) + first[at + 1 :])
            assert weights_hash(stretch_hashes(folder)) != whole
