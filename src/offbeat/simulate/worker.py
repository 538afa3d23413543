"""The main function of a worker process of pool.py: it listens, learns problems, does jobs, until its pool is gone."""

from __future__ import annotations

import mmap
import os
import pickle
import queue
import threading
import traceback
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

import numpy as np
import torch

from offbeat.simulate.pack import Bytes, unpack
from offbeat.simulate.workers import work


def send(connection: Connection, message: Any) -> None:
    """A message, its arrays as they lie in memory."""
    apart: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=apart.append)
    connection.send_bytes(pickle.dumps((head, [part.raw().nbytes for part in apart])))
    for part in apart:
        connection.send_bytes(part.raw())


def receive(connection: Connection) -> Any:
    """A message that was sent."""
    head, sizes = pickle.loads(connection.recv_bytes())
    parts = [bytearray(size) for size in sizes]
    for part in parts:
        if part:
            connection.recv_bytes_into(part)
        else:
            connection.recv_bytes()
    return pickle.loads(head, buffers=parts)


class WorkerLoop:
    """What a worker has in front of it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.problems: dict[int, Any] = {}
        self.blobs: dict[int, Bytes] = {}
        self.jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def listen(self) -> None:
        """Take what comes, so that the pool never waits for a worker that is busy; end with the pool."""
        try:
            while True:
                kind, *content = receive(self.connection)
                if kind == "blob":
                    number, size = content
                    handle = recv_handle(self.connection)
                    # private: a write, which nobody does, would stay in this process
                    mapped = mmap.mmap(handle, size, access=mmap.ACCESS_COPY)
                    os.close(handle)
                    self.blobs[number] = np.frombuffer(mapped, dtype=np.uint8)
                else:
                    self.jobs.put((kind, *content))
        except (EOFError, OSError):
            os._exit(0)

    def serve(self) -> None:
        """Do jobs, in the order in which they came."""
        while True:
            kind, number, content = self.jobs.get()
            try:
                if kind == "problem":
                    self.problems[number] = content
                else:
                    if isinstance(self.problems[number], bytes):
                        self.problems[number] = unpack(self.problems[number], self.blobs.__getitem__)
                    send(self.connection, work(self.problems[number], content))
            except (BrokenPipeError, ConnectionResetError):
                os._exit(0)
            except Exception as error:
                send(self.connection, portable(error))


def portable(error: Exception) -> Exception:
    """The error with its traceback as a note, or one that says the same if it cannot travel."""
    text = "in a worker process:\n" + "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(text)
    return error


def main(connection: Connection) -> None:
    """Work for the pool at the other end."""
    torch.set_num_threads(1)
    loop = WorkerLoop(connection)
    threading.Thread(target=loop.listen, daemon=True).start()
    send(connection, None)
    loop.serve()
