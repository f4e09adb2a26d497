"""Fetches one file whole or not at all: streamed to a side file, its SHA-256 checked, then moved in place."""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

CHUNK_BYTES = 1 << 18
TIMEOUT_S = 60.0

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
    part = target.with_name(target.name + f".part{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open_url(url, headers) as response, part.open("wb") as out:
            found = _stream(response, out.write, url, part, progress)
        if sha256 is not None and found != sha256:
            raise DownloadError(
                f"{url}: SHA-256 is {found}, expected {sha256}: it was changed or cut on its way; try again"
            )
        part.replace(target)
    except OSError as error:
        raise DownloadError(explain_os_error(error, target)) from error
    finally:
        part.unlink(missing_ok=True)
    return target


def open_url(url: str, headers: Mapping[str, str] | None = None) -> http.client.HTTPResponse:
    """An open HTTP response; failures become ``DownloadError``."""
    if not url.startswith(("https://", "http://")):
        raise DownloadError(f"{url} is not an http(s) address")
    request = urllib.request.Request(url, headers={"User-Agent": "minillm"})  # noqa: S310
    for key, value in (headers or {}).items():
        request.add_unredirected_header(key, value)  # a token is for the hub, not for where it redirects to
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_S)  # noqa: S310
    except urllib.error.HTTPError as error:
        error.close()
        raise DownloadError(f"{url} answered {error.code} {error.reason}") from error
    except (urllib.error.URLError, TimeoutError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise DownloadError(
            f"{url} cannot be reached ({reason}): check the network or the proxy; "
            "the bundled models need none: --model tiny"
        ) from error
    return response


def _stream(
    response: http.client.HTTPResponse,
    write: Callable[[bytes], int],
    url: str,
    part: Path,
    progress: Progress | None,
) -> str:
    length = response.headers.get("Content-Length")
    total = int(length) if length else None
    if total is not None and (free := shutil.disk_usage(part.parent).free) < total:
        raise DownloadError(
            f"{part.parent} has {free:,} bytes free, {total:,} are needed: make room or set MINILLM_CACHE"
        )
    digest, done = hashlib.sha256(), 0
    try:
        while chunk := response.read(CHUNK_BYTES):
            write(chunk)
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done, total)
    except (http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise DownloadError(f"{url} broke off after {done:,} of {total or '?'} bytes ({error}): try again") from error
    if total is not None and done != total:
        raise DownloadError(f"{url} broke off after {done:,} of {total:,} bytes: try again")
    return digest.hexdigest()


def explain_os_error(error: OSError, path: Path) -> str:
    """A full or read-only disk in words, with the way out."""
    if error.errno == errno.ENOSPC:
        return f"the disk of {path.parent} is full: make room or set MINILLM_CACHE to another folder"
    return f"{path} cannot be written ({error.strerror}): set MINILLM_CACHE to a folder that can"
