"""The limit of open files: raised at the start, and waited for when it is reached.

Connections count against it, also those of strangers, which are closed after a few seconds. So a
file that cannot be opened now can be opened soon. Limits on connections are up to the servers.
"""

from __future__ import annotations

import errno
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

RETRY_S = 60.0  # strangers are disconnected after 10 to 22 seconds
_PAUSE_S = 0.05
_MAX_LIMIT = 65536  # enough; some systems have no hard limit
_T = TypeVar("_T")


def raise_limit() -> None:
    """Raise the soft limit of this process to its hard limit, or to 65536 if that is less."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MAX_LIMIT if hard == resource.RLIM_INFINITY else min(hard, _MAX_LIMIT)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):  # the system allows less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def retry(operation: Callable[[], _T]) -> _T:
    """Call an operation that opens a file; retry for `RETRY_S` while too many files are open."""
    give_up_at = time.monotonic() + RETRY_S
    while True:
        try:
            return operation()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            if time.monotonic() >= give_up_at:
                raise OSError(
                    error.errno,
                    f"too many open files for {RETRY_S:g} s; raise the limit (ulimit -n), and let "
                    "your firewall admit only the peers' addresses",
                ) from error
        time.sleep(_PAUSE_S)
