"""A real nginx in front of a party, for tests and benches, with a minimal configuration.

It runs unprivileged, in the foreground, in its own folder.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from celu.errors import CeluError
from celu.testing import free_port

_START_S = 10.0
# Debian's nginx.conf with its files in the folder, plus the two locations of docs/gateway.md.
_CONFIG = """\
worker_processes auto;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{
    worker_connections 768;
}}
http {{
    sendfile on;
    tcp_nopush on;
    types_hash_max_size 2048;
    default_type application/octet-stream;
    ssl_protocols TLSv1 TLSv1.1 TLSv1.2 TLSv1.3;
    ssl_prefer_server_ciphers on;
    access_log {folder}/access.log;
    gzip on;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port} ssl http2;
        server_name localhost;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        location /celu.Link/ {{
            grpc_pass grpc://127.0.0.1:{upstream};
            client_max_body_size 0;
        }}
        location /celu {{
            proxy_pass http://127.0.0.1:{upstream};
            proxy_http_version 1.1;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection "upgrade";
        }}
    }}
}}
"""


def find_nginx() -> str | None:
    """The path of the nginx program, or None."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


@contextmanager
def running_nginx(folder: Path, upstream: int, certificate: Path, key: Path) -> Iterator[int]:
    """Run nginx in front of the local port `upstream` and yield the port that it listens on.

    Raises CeluError with nginx's output if it does not start.
    """
    program, port = find_nginx(), free_port()
    if program is None:
        raise CeluError("nginx is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "nginx.conf"
    config.write_text(
        _CONFIG.format(
            folder=folder, port=port, upstream=upstream, certificate=certificate, key=key
        ),
        encoding="utf-8",
    )
    command = [program, "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(config)]
    with (folder / "output").open("w", encoding="utf-8") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        _wait_until_listening(port, process, folder)
        yield port
    finally:
        process.terminate()
        process.wait(_START_S)


def _wait_until_listening(port: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                output = (folder / "output").read_text(encoding="utf-8")[-2000:]
                raise CeluError(f"nginx did not start: {output}") from None
            time.sleep(0.05)
