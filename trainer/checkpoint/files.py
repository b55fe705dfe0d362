"""A checkpoint's files as torch's distributed checkpoint takes them: on disk or in an object store, hashed
while they are written, and never unpickled beyond an allow-list."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import IO, Any, Final, cast

import torch
from blake3 import blake3
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemBase, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan
from torch.futures import Future

from lineage.ids import ID_BYTES
from lineage.storage.durable import entry_changed, make_folder
from lineage.storage.errors import naming_path
from lineage.storage.folder import Folder, filesystem, is_remote
from trainer.checkpoint.store import CheckpointError, record_sums


class _Files(FileSystemBase):
    """Files of a checkpoint, hashed while they are written."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[int, str]] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase, None, None]:
        remote = is_remote(str(path))
        with (
            naming_path(str(path)),
            filesystem(str(path)).open(str(path), mode) if remote else open(path, mode) as file,
        ):
            if mode == "rb":
                yield cast(io.IOBase, file)
                return
            stream = _HashingStream(file)
            try:
                yield cast(io.IOBase, stream)
            except RuntimeError as error:
                if stream.failed is None:
                    raise
                raise stream.failed from error  # torch keeps no more of it than where in its own code it was
            stream.flush()
            if not remote:
                os.fsync(file.fileno())  # torch syncs before what is buffered here is written
                entry_changed(str(path), os.path.dirname(path))
            self.sums[str(path).rsplit("/", 1)[-1]] = (stream.tell(), stream.hash())

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return f"{path}/{suffix}"

    def init_path(self, path: str | os.PathLike[str]) -> str:
        return str(path)

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        if is_remote(str(path)):
            filesystem(str(path)).mv(str(path), str(new_path))
        else:
            os.replace(path, new_path)
            entry_changed(str(new_path), os.path.dirname(new_path))

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        if not is_remote(str(path)):
            make_folder(str(path), str(path))

    def exists(self, path: str | os.PathLike[str]) -> bool:
        return bool(filesystem(str(path)).exists(str(path)))

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        filesystem(str(path)).rm_file(str(path))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


class _HashingStream:
    """A file being written, and the hash of what went in."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hasher = blake3()
        self._size = 0
        self.failed: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        self._hasher.update(data)
        self._size += len(data)
        try:
            return self._file.write(data)
        except OSError as error:
            self.failed = error
            raise

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """Nothing: torch closes the stream after each tensor, and the file goes on."""

    def fileno(self) -> int:
        return self._file.fileno()

    def hash(self) -> str:
        return self._hasher.hexdigest(length=ID_BYTES)


class PieceWriter(FileSystemWriter):
    """Writes a rank's pieces of one checkpoint into `folder`; `sums` says what was written."""

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder.url, sync_files=not folder.is_remote)
        files = _Files()
        self.sums = files.sums
        self.fs = cast(Any, files)
        self.path = folder.url


class CheckpointWriter(PieceWriter):
    """Writes one checkpoint into `folder`; on the coordinator, `publish` is called once every rank is done.
    `elsewhere` writes the tensors of a plan in another process and gives torch's results; None: this thread
    writes them."""

    def __init__(
        self,
        folder: Folder,
        rank: int,
        publish: Callable[[], None],
        elsewhere: Callable[[SavePlan, list[Tensor]], list[Any]] | None = None,
    ) -> None:
        super().__init__(folder)
        self._folder = folder
        self._own_rank = rank
        self._publish = publish
        self._elsewhere = elsewhere

    def stage(self, state_dict: dict[str, object]) -> dict[str, object]:
        return state_dict  # the saver has copied it already, into memory that it uses again

    def write_data(self, plan: Any, planner: Any) -> Any:
        if self._elsewhere is not None:
            written: Future[list[Any]] = Future()
            tensors = [cast(Tensor, planner.resolve_data(item)) for item in plan.items]
            written.set_result(self._elsewhere(plan, tensors))
            return written
        written = super().write_data(plan, planner)
        record_sums(self._folder, self._own_rank, self.sums)
        return written

    def finish(self, metadata: Metadata, results: list[list[Any]]) -> None:
        super().finish(metadata, results)
        self._publish()


class CheckpointReader(FileSystemReader):
    """Reads one checkpoint; its metadata can name nothing but tensors."""

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder.url)
        self.fs = cast(Any, _Files())
        self.path = folder.url

    def read_metadata(self, *arguments: Any, **named: Any) -> Metadata:
        with self.fs.create_stream(self._get_metadata_path(), "rb") as file:
            metadata = _MetadataUnpickler(cast(IO[bytes], file)).load()
        if not isinstance(metadata, Metadata):
            raise CheckpointError(
                f"{self.path}: its metadata is a {type(metadata).__name__}, not a checkpoint's"
            )
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


_CHECKPOINT_CLASSES: Final = "torch.distributed.checkpoint"
_ALLOWED: Final = {
    f"{_CHECKPOINT_CLASSES}.metadata": {
        "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties",
        "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
    },
    f"{_CHECKPOINT_CLASSES}.filesystem": {"_StorageInfo"},
    "torch": {"Size", *(str(d).removeprefix("torch.") for d in vars(torch).values() if isinstance(d, torch.dtype))},
    "torch.serialization": {"_get_layout"},
    "collections": {"OrderedDict"},
}  # fmt: skip


def _memory_format(kind: Any, name: Any) -> Any:
    """Before Python 3.11.4 an enumeration's member is pickled as `getattr(class, name)`: this stands in for
    getattr."""
    if kind is not _MEM_FORMAT_ENCODING or name not in _MEM_FORMAT_ENCODING.__members__:
        raise CheckpointError(
            f"the metadata of a checkpoint takes {name!r} of {kind!r}, as none of ours does: refused"
        )
    return kind[name]


class _MetadataUnpickler(pickle.Unpickler):
    """Makes a checkpoint's metadata and nothing else: a pickle from elsewhere could name any function."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _memory_format
        if name not in _ALLOWED.get(module, ()):
            raise CheckpointError(
                f"the metadata of a checkpoint names {module}.{name}, which no checkpoint of ours does: refused"
            )
        return super().find_class(module, name)
