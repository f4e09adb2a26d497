"""Fetches one file whole or not at all: streamed to a side file, its SHA-256 checked, then moved in place."""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import re
import secrets
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

CHUNK_BYTES = 1 << 18
TIMEOUT_S = 60.0
PAGE_LIMIT_BYTES = 1 << 26  # of an index or a listing: far above any, far below what would fill the memory

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all when known


class DownloadError(RuntimeError):
    """What could not be fetched, why, and what to do."""


def fetch(
    url: str,
    target: Path,
    *,
    sha256: str | None = None,
    headers: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Path:
    """Download ``url`` to ``target``; a failure leaves nothing behind and raises ``DownloadError``."""
    part = target.with_name(f"{target.name}.part{os.getpid()}-{secrets.token_hex(4)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open_url(url, headers) as response, part.open("xb") as out:  # a name that nobody else has
            try:
                found = _stream(response, out.write, url, part, progress)
                if sha256 is not None and found != sha256:
                    raise DownloadError(
                        f"{url}: SHA-256 is {found}, expected {sha256}: it was changed or cut on its way; try again"
                    )
                out.close()
                part.replace(target)
            finally:
                part.unlink(missing_ok=True)
    except OSError as error:
        raise DownloadError(explain_os_error(error, target)) from error
    return target


def fetch_page(url: str, headers: Mapping[str, str] | None = None) -> str:
    """The text of a small page, such as an index; failures become ``DownloadError``."""
    with open_url(url, headers) as response:
        try:
            raw = response.read(PAGE_LIMIT_BYTES + 1)
        except (http.client.HTTPException, OSError) as error:
            raise DownloadError(f"{url} broke off ({error or type(error).__name__}): try again") from error
    length = _length(response)
    if length is not None and len(raw) < length:
        raise DownloadError(f"{url} broke off after {len(raw):,} of {length:,} bytes: try again")
    if len(raw) > PAGE_LIMIT_BYTES:
        raise DownloadError(f"{url} answers with more than {PAGE_LIMIT_BYTES:,} bytes: is it the right address?")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DownloadError(f"{url} is not UTF-8 text at byte {error.start:,}: is it the right address?") from error


def open_url(url: str, headers: Mapping[str, str] | None = None) -> http.client.HTTPResponse:
    """An open HTTP response; failures become ``DownloadError``."""
    if not url.startswith(("https://", "http://")):
        raise DownloadError(f"{url!r} is not an http(s) address")
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "minillm"})  # noqa: S310
        for key, value in (headers or {}).items():
            request.add_unredirected_header(key, value)  # a token is for the hub, not for where it redirects to
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_S)  # noqa: S310
    except urllib.error.HTTPError as error:
        error.close()
        raise DownloadError(f"{url} answered {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = str(getattr(error, "reason", error)) or type(error).__name__
        raise DownloadError(
            f"{url} cannot be reached ({_printable(reason)}): check the network or the proxy; "
            "the bundled models need none: --model tiny"
        ) from error
    except ValueError as error:  # a host or a port that is none, letters that an address cannot have
        raise DownloadError(f"{url!r} is no address that can be asked ({error}): check its spelling") from error
    return response


def _printable(reason: str) -> str:
    """What a server sent in place of HTTP may hold anything, and may be long."""
    return "".join(c if c.isprintable() else "?" for c in reason[:200])


def _stream(
    response: http.client.HTTPResponse,
    write: Callable[[bytes], int],
    url: str,
    part: Path,
    progress: Progress | None,
) -> str:
    total = _length(response)
    check_space(part.parent, total)
    digest, done = hashlib.sha256(), 0
    while True:
        try:
            chunk = response.read(CHUNK_BYTES)
        except (http.client.HTTPException, OSError) as error:
            why = str(error) or type(error).__name__
            raise DownloadError(f"{url} broke off after {done:,} of {total or '?'} bytes ({why}): try again") from error
        if not chunk:
            break
        write(chunk)
        digest.update(chunk)
        done += len(chunk)
        if progress is not None:
            progress(done, total)
    if total is not None and done != total:
        raise DownloadError(f"{url} broke off after {done:,} of {total:,} bytes: try again")
    return digest.hexdigest()


def _length(response: http.client.HTTPResponse) -> int | None:
    """Bytes of the body, where the server says it."""
    length = response.headers.get("Content-Length", "")
    return int(length) if re.fullmatch("[0-9]{1,18}", length) else None


def check_space(folder: Path, needed_bytes: int | None) -> None:
    """``DownloadError`` where the disk of ``folder`` has no room for ``needed_bytes``, as far as they are known."""
    if needed_bytes is not None and (free := shutil.disk_usage(folder).free) < needed_bytes:
        raise DownloadError(
            f"{folder} has {free:,} bytes free, {needed_bytes:,} are needed: make room or set MINILLM_CACHE"
        )


def explain_os_error(error: OSError, path: Path) -> str:
    """A full or read-only disk in words, with the way out."""
    if error.errno == errno.ENOSPC:
        return f"the disk of {path.parent} is full: make room or set MINILLM_CACHE to another folder"
    return f"{path} cannot be written ({error.strerror or error}): set MINILLM_CACHE to a folder that can"
