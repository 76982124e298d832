"""A file that one process at a time appends to: locked, whole lines or nothing, on the disk when a call returns."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from eagle_repro.measure.lines import RecordError


class LockedFile:
    """The file at `path`, open for appending under a lock that ends with this process, however it ends.

    Its folder is made where it is missing. Every method raises RecordError, in one line, for what the system
    refuses (no space, no permission, another process has the lock).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _told(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd: int | None = _open_locked(path)
            self.size = os.fstat(self._fd).st_size

    def append(self, data: bytes) -> None:
        """Add `data` as a whole; where that fails the file is as before."""
        fd, view = self._open(), memoryview(data)
        with _told(self.path):
            try:
                while view:
                    view = view[os.write(fd, view) :]
                os.fsync(fd)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(fd, self.size)
                raise
        self.size += len(data)

    def cut(self, size: int) -> None:
        """Drop everything after the first `size` bytes."""
        with _told(self.path):
            os.ftruncate(self._open(), size)
        self.size = size

    def publish(self, name: Path) -> None:
        """Give the file its final name, replacing what had it, and close it."""
        with _told(name):
            os.replace(self.path, name)
            _sync_folder(name.parent)
        self.close()

    def close(self) -> None:
        """Close the file, which ends the lock; closing twice does nothing."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> int:
        if self._fd is None:
            raise RecordError(f"{self.path.name} is closed: open a new writer")
        return self._fd


def set_aside(path: Path) -> Path:
    """Keep an older file under the first free name NAME.old-1, NAME.old-2, ..., and give that name.

    Readers look for names that end in .jsonl or .partial, so that it is not taken for a record any more.
    """
    number = 1
    while (aside := Path(f"{path}.old-{number}")).exists():
        number += 1
    with _told(path):
        os.rename(path, aside)
    return aside


def _open_locked(path: Path) -> int:
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its owner may have renamed the file between our open and our lock: then there is a new one to open.
            if path.exists() and os.path.samestat(os.fstat(fd), os.stat(path)):
                _sync_folder(path.parent)
                return fd
        except BlockingIOError:
            os.close(fd)
            message = f"{path.name} is being written by another process: wait for it, or choose another output folder"
            raise RecordError(message) from None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _sync_folder(folder: Path) -> None:
    """Make names in the folder survive a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn what the system refuses into one line that says what to do."""
    try:
        yield
    except OSError as error:
        advice = "free some space or " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise RecordError(
            f"cannot write {path.name} in {path.parent}: {error.strerror or error}; {advice}choose "
            "another output folder (what was written before is kept)"
        ) from error
