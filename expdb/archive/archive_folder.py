"""Check that an archive folder is writable, and that it is the folder of the stored policy.

A marker file in the folder holds an id, which the policy also stores. If a process does not find
this id, the folder is on another machine or its disk is not mounted, and the process must not
archive to that path.
"""

from __future__ import annotations

import os
import uuid
import zlib
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from expdb import errors
from expdb.process.liveness import named
from expdb.storage.writing.eviction import Eviction

MARKER_FILE = "_expdb_archive"  # readers of Parquet folders skip names with an underscore
LONGEST_NAME = 180  # characters of a folder's name

_trusted: set[tuple[str, str]] = set()  # (location, buffer) if this process has set the policy


def prepare(folder: str) -> str:
    """Create the folder and return its id; raise ArchiveFailed if nothing can be written there."""
    marker = Path(folder) / MARKER_FILE
    draft = marker.with_name(f".{named(0).replace('/', '-')}.{uuid.uuid4().hex}")
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(uuid.uuid4().hex)
        try:
            with suppress(FileExistsError):  # another buffer or process archives there too
                os.link(draft, marker)
        except OSError:  # a file system without hard links
            if not marker.exists():
                draft.replace(marker)
        return marker.read_text()
    except OSError as error:
        raise failed(folder, error) from error
    finally:
        with suppress(OSError):
            draft.unlink()


def check(location: str, buffer: str, policy: Eviction, marker: str | None) -> None:
    """Raise ArchiveFailed unless this process may archive to the folder of a stored policy."""
    folder = os.fspath(policy.archive or "")
    if (location, buffer) not in _trusted and _belongs_to_another_user(location):
        raise errors.ArchiveFailed(
            f"no steps of buffer {buffer!r} were evicted, because its policy archives to "
            f"{folder} and {location} belongs to another user; if you trust this folder, set "
            "buffer.eviction in this process"
        )
    if marker is None:  # the policy was stored with schema 0007
        return
    try:
        stored_marker = (Path(folder) / MARKER_FILE).read_text()
    except FileNotFoundError:
        stored_marker = ""
    except OSError as error:
        raise failed(folder, error) from error
    if stored_marker != marker:
        raise errors.ArchiveFailed(
            f"{folder} is not the archive folder of buffer {buffer!r}: {MARKER_FILE} is missing "
            "or has another id, so no steps were evicted; mount the archive folder on this "
            'machine, use Eviction(by="archiver") and run the archiver on a machine with this '
            "folder, or, if you emptied the folder, set buffer.eviction again"
        )


def of_buffer(archive: str | os.PathLike[str], name: str) -> Path:
    """Return the folder of the archive files of a buffer."""
    quoted = quote(name, safe="")
    if len(quoted) > LONGEST_NAME:
        quoted = f"{quoted[:LONGEST_NAME].rsplit('%', 1)[0]}-{zlib.crc32(name.encode()):08x}"
    return Path(archive) / f"buffer={quoted}"


def remove_old_drafts(folder: Path) -> None:
    """Remove drafts whose final file exists, because another process has written that file.

    A process leaves such a draft if it was suspended, another process took over its eviction, and
    the process was killed before it removed the draft.
    """
    for draft in folder.glob("*/.*.parquet.*"):
        name, _, _ = draft.name[1:].rpartition(".")
        if draft.with_name(name).exists():
            remove(draft)


def trust(location: str, buffer: str) -> None:
    """Note that this process has set the policy of a buffer itself."""
    _trusted.add((location, buffer))


def _belongs_to_another_user(location: str) -> bool:
    if not hasattr(os, "geteuid"):
        return False
    try:
        return os.stat(location).st_uid != os.geteuid()
    except OSError:  # a server, which has its own users
        return False


def failed(path: str, error: OSError) -> errors.ArchiveFailed:
    """Return the error for a file or folder that cannot be written."""
    return errors.ArchiveFailed(
        f"{path} cannot be written ({error.strerror or error}), so no steps were evicted; free "
        "disk space, correct the permissions, or set another buffer.eviction"
    )


def remove(draft: Path) -> None:
    """Delete a draft; a file that cannot be deleted is removed later as an old draft."""
    with suppress(OSError):
        draft.unlink()


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open a folder, and it keeps the entries in a journal
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
