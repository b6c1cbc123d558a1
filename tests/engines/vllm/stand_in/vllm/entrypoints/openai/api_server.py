"""Starts, answers and dies as vLLM's server does, without a model: STAND_IN says how."""

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import shared_memory
from pathlib import Path

PART = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(120)"
"""A part that does not end when it is asked to."""


def _argument(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"pids": PIDS, "arguments": sys.argv[1:], "memory": MEMORY.name}).encode()
        self.send_response(200 if self.path in ("/health", "/about") else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


mode = os.environ.get("STAND_IN", "answers")
if mode == "refuses":
    print("(APIServer pid=7) WARNING 01-01 [a.py:1] this can cause fd limit errors like OSError: [Errno 24]")
    sys.exit("(EngineCore pid=7) ERROR 01-01 [core.py:1] ValueError: the context does not fit\nRuntimeError: see above")
if mode == "is_silent":
    time.sleep(600)
marker = Path(os.environ.get("STAND_IN_MARKER", "/nonexistent"))
if mode == "loses_port" and not marker.exists():
    marker.touch()
    sys.exit("OSError: [Errno 98] Address already in use")

signal.signal(signal.SIGTERM, signal.SIG_IGN if mode == "is_stubborn" else signal.SIG_DFL)
MEMORY = shared_memory.SharedMemory(create=True, size=4096)
PIDS = [os.getpid(), subprocess.Popen([sys.executable, "-c", PART]).pid]
ThreadingHTTPServer((_argument("--host"), int(_argument("--port"))), _Answers).serve_forever()
