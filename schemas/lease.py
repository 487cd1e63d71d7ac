"""Leases: of several machines that want one lock of a lake in an object store, one at most holds it.

Each writes a claim, an object of its own under ``.locks/NAME/``, then lists the claims: it holds the lock when no other live claim is
there, and else takes its own back or waits. Of two that come at once, the one that wrote later surely sees the other's, since listing shows
what was written before it; all but the one with the first name give way, so that one gets in. This asks nothing of the store but that;
conditional writes would ask for a store that has them and for a client that sends them.

Failure model. A claim lives for ``LEASE_SECONDS`` after it was last written, by the store's own clock, and its holder writes it again far
more often, in a thread. A machine that dies leaves a claim that runs out. On one machine the kernel's lock comes first, so a claim under
the identity of this working copy is a dead process's, and is taken over at once. A holder that was stopped, or cut off, for so long that
its claim may have run out writes nothing more (``WorkingCopy.check_leases``). Not covered: a holder stopped between that check and the
request that follows it; what it could then still replace is one small file, the name of a snapshot, by its own.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from schemas import objects
from schemas.copy_room import TEMPORARY
from schemas.errors import InUse, LakeError
from schemas.working_copy import WorkingCopy

LEASE_SECONDS = 60.0
RENEW_SECONDS = 10.0
SAFE_SECONDS = 40.0
"""So long after its last writing a claim surely holds, whole seconds of the store's clock and slow requests allowed for."""
TRIES = 4
_SLASH = "="
"""Stands for a slash in the folder of a lock's claims: names of runs hold hyphens, one after the other too, but none of these."""


@contextlib.contextmanager
def lease(copy: WorkingCopy, name: str, purpose: str) -> Iterator[None]:
    """Hold a lock of a lake among all machines; the caller holds the same on this machine.

    Raises:
        InUse: another machine holds it (the message says which process).
        LakeError: the store does not answer.
    """
    claim = _Claim(copy, name, f"process {os.getpid()} on {socket.gethostname()} ({purpose})")
    try:
        claim.take()
    except BaseException:
        claim.drop()  # what is left would count as held by whoever tries again here
        raise
    ended = threading.Event()
    thread = threading.Thread(target=claim.keep, args=(ended,), name=f"lease {name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        claim.drop()


def living(copy: WorkingCopy) -> dict[str, str]:
    """Who holds a lock of the lake on any machine now, by the lock's name; asks only, and takes nothing."""
    claims = [stored for stored in objects.listed(f"{copy.key}/.locks") if stored.seconds > time.time() - LEASE_SECONDS]
    return {stored.key.split("/")[-2].replace(_SLASH, "/"): text for stored in claims if (text := _text(copy, stored.key))}


def _text(copy: WorkingCopy, key: str) -> str:
    partial: Path = copy.root / f"{TEMPORARY}{secrets.token_hex(8)}"
    try:
        objects.get(key, partial)
        return partial.read_text(encoding="utf-8", errors="replace")[:200]
    except (FileNotFoundError, LakeError):  # it was given up meanwhile
        return ""
    finally:
        partial.unlink(missing_ok=True)


class _Claim:
    def __init__(self, copy: WorkingCopy, name: str, holder: str) -> None:
        self.copy, self.name, self.holder = copy, name, holder
        self.folder = f"{copy.key}/.locks/{name.strip('.').replace('/', _SLASH)}"
        self.key = f"{self.folder}/{copy.copy}"

    def take(self) -> None:
        who, now = "", 0
        for turn in range(TRIES):
            if turn:
                time.sleep(random.uniform(0.1, 0.7))
            if self.name not in self.copy.held:
                now = self.write()
            others = [each for each in objects.listed(self.folder) if each.key != self.key]
            alive = [each for each in others if each.seconds > now - LEASE_SECONDS]
            if not alive:
                for each in others:
                    objects.delete(each.key)
                return
            who = _text(self.copy, alive[0].key) or who
            if turn == TRIES - 1 or min(each.key for each in alive) < self.key:
                self.drop()
        raise InUse(
            f"in use by {who or 'another machine'}",
            where=f"{self.copy.address} ({self.name})",
            fix=f"wait for it to end, or stop it, then run again; the claim of a machine that died runs out after {LEASE_SECONDS:.0f} s",
        )

    def write(self) -> int:
        """Write the claim; returns when, by the store's clock."""
        began = time.monotonic()
        partial = self.copy.root / f"{TEMPORARY}{secrets.token_hex(8)}"
        try:
            partial.write_text(self.holder, encoding="utf-8")
            written = objects.put(self.key, partial)
        finally:
            partial.unlink(missing_ok=True)
        if time.monotonic() <= self.copy.held.get(self.name, began + SAFE_SECONDS):  # one that came too late renews nothing
            self.copy.held[self.name] = began + SAFE_SECONDS
        return written.seconds

    def keep(self, ended: threading.Event) -> None:
        """Write the claim again and again; what fails is tried again until the lease is over, which whoever writes then learns."""
        while not ended.wait(RENEW_SECONDS):
            if time.monotonic() > self.copy.held[self.name]:
                return
            with contextlib.suppress(LakeError):
                self.write()

    def drop(self) -> None:
        self.copy.held.pop(self.name, None)
        with contextlib.suppress(LakeError):  # it runs out by itself
            objects.delete(self.key)
