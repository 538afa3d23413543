"""Processes for tests that need not import PyTorch again, which takes two seconds of a processor.

A process that has imported everything waits at a socket. Asked for `python -c CODE` or `python -m offbeat`, it forks;
the child takes the caller's files, folder, environment and arguments and runs the code as a fresh interpreter would. It
has a process number of its own, can be killed and stopped, and ends with a status like any other. Only what uses
offbeat is started like this, only from the process of the tests itself, and not where imports or the start are tested.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from pathlib import Path
from typing import Any

APART = ("sys.modules", "os.environ", "--help")  # tests of imports, of what is global, and of how fast help is
IMPORTED = (
    *("offbeat.cli.app", "offbeat.cli.run", "offbeat.cli.sweep", "offbeat.cli.deploy", "offbeat.experiment.runs"),
    *("offbeat.experiment.sweep_workers", "offbeat.experiment.serving", "offbeat.experiment.joining", "offbeat.report"),
    *("offbeat.simulate.pool", "offbeat.simulate.transport", "offbeat.algorithms", "offbeat.models", "pyarrow.parquet"),
)
_HIGH = 512  # where file descriptors are kept until they get their numbers
_Real = subprocess.Popen


class Forked(_Real):  # type: ignore[type-arg]
    """`subprocess.Popen`, by way of the process that has imported everything where that makes no difference."""

    connection: socket.socket | None = None

    def _execute_child(self, *given: Any) -> None:
        names = _Real._execute_child.__code__.co_varnames[1 : len(given) + 1]  # type: ignore[attr-defined]
        asked = dict(zip(names, given, strict=True))
        words = list(asked["args"]) if isinstance(asked["args"], list | tuple) else []
        if not forkable(words, asked["preexec_fn"]):
            super()._execute_child(*given)  # type: ignore[misc]
            return
        ends = [asked[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        files = {at: at if end == -1 else end for at, end in enumerate(ends)} | {n: n for n in asked["pass_fds"]}
        request = {
            "words": [os.fspath(word) for word in words[1:]],
            "files": list(files),
            "folder": os.path.abspath(asked["cwd"] or os.curdir),
            "env": dict(os.environ if asked["env"] is None else asked["env"]),
            "session": bool(asked["start_new_session"]),
        }
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(server())
        text = json.dumps(request).encode()
        socket.send_fds(self.connection, [len(text).to_bytes(4, "big")], list(files.values()))
        self.connection.sendall(text)
        self.pid = int.from_bytes(_exactly(self.connection, 4), "big")
        self._child_created = True
        with contextlib.suppress(AttributeError):
            self._close_pipe_fds(*(asked[n] for n in _PIPES))  # type: ignore[attr-defined]

    def _internal_poll(self, *given: Any, **named: Any) -> int | None:
        if self.connection is None:
            return super()._internal_poll(*given, **named)  # type: ignore[misc, no-any-return]
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self.connection is None:
            return super()._wait(timeout)  # type: ignore[misc, no-any-return]
        if self.returncode is None:
            if not select.select([self.connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = int.from_bytes(_exactly(self.connection, 4), "big", signed=True)
            self.connection.close()
        return self.returncode


_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_server: list[tuple[_Real[bytes], str]] = []


def forkable(words: list[Any], before: Any) -> bool:
    """Whether this is Python with a script or a command of offbeat, and nothing special about its start."""
    if before is not None or len(words) < 3 or words[0] != sys.executable:
        return False
    module = words[1] == "-m" and words[2].split(".")[0] in ("offbeat", "benchmarks")
    known = module or (words[1] == "-c" and "offbeat" in words[2])
    return known and not any(each in str(word) for word in words for each in APART)


def server() -> str:
    """Where the process that forks listens; it is started when it is first needed, and ends with this one."""
    if not _server:
        path = os.path.join(tempfile.mkdtemp(prefix="forking-"), "socket")
        folders = os.pathsep.join(p for p in sys.path if p)
        process = _Real(
            [sys.executable, __file__, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": folders},
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        _server.append((process, path))
        atexit.register(_end, process)
    return _server[0][1]


def _end(process: _Real[bytes]) -> None:
    process.communicate(timeout=30)


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = connection.recv(count - len(found))
        if not part:
            raise EOFError("the process that forks is gone")
        found += part
    return found


# The process that forks


def listen(path: str) -> None:
    """Fork whenever asked, and tell who asked how the child ended. Ends with standard input."""
    for module in IMPORTED:
        __import__(module)
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    print("ready", flush=True)
    waiting: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([listener, woken, 0], [], [])
        if 0 in ready:
            Path(path).unlink()
            os.rmdir(os.path.dirname(path))
            return
        if woken in ready:
            os.read(woken, 4096)
            _tell(waiting)
        if listener in ready:
            connection, _ = listener.accept()
            size, files, _, _ = socket.recv_fds(connection, 4, 16)
            request = json.loads(_exactly(connection, int.from_bytes(size, "big")))
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for end in (listener, connection, *waiting.values()):
                    end.close()
                os.close(woken)
                os.close(wake)
                _become(request, files)
            for file in files:
                os.close(file)
            waiting[pid] = connection
            with contextlib.suppress(OSError):  # who asked is gone
                connection.sendall(pid.to_bytes(4, "big"))


def _tell(waiting: dict[int, socket.socket]) -> None:
    while waiting:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with waiting.pop(pid) as connection, contextlib.suppress(OSError):
            connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))


def _become(request: dict[str, Any], files: list[int]) -> None:
    """In the child: what was asked for, to the end of the process."""
    code = 1
    try:
        _take(request, files)
        code = _run(request["words"])
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(BaseException):
                stream.flush()
        os._exit(code)


def _take(request: dict[str, Any], files: list[int]) -> None:
    if request["session"]:
        os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    kept = [fcntl.fcntl(file, fcntl.F_DUPFD, _HIGH) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(kept, request["files"], strict=True):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, "utf-8", "backslashreplace", closefd=False)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    if os.environ.get("PYTHONWARNINGS") == "ignore":
        warnings.simplefilter("ignore")
    added = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p not in sys.path]
    sys.path[1:1] = added  # the first one is set with the arguments


def _run(words: list[str]) -> int:
    kind, what, *rest = words
    sys.argv = ["-c" if kind == "-c" else what, *rest]
    sys.path[0] = "" if kind == "-c" else os.getcwd()
    try:
        if kind == "-c":
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
        else:
            runpy.run_module(what, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return int(end.code or 0)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return 0


if __name__ == "__main__":
    listen(sys.argv[1])
