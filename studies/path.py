"""How many functions in how many files lie between a command and the first `Send`: `python -m studies.path`.

Counts the functions of offbeat that are entered from the call of the command until the server's first job is sent;
class bodies, module level code, comprehensions and lambdas are left out.
"""

from __future__ import annotations

import inspect
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import offbeat

ROOT = str(Path(offbeat.__file__).parent)


class Sent(BaseException):
    """The first job is on its way."""


def path(words: list[str]) -> Counter[CodeType]:
    """How often each function was entered on the way of this command to its first job."""
    from offbeat.cli.app import main
    from offbeat.simulate import traffic

    entered = Counter[CodeType]()

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        if event == "call" and function and code.co_filename.startswith(ROOT):
            entered[code] += 1
            if code.co_name == "send" and code.co_filename == traffic.__file__:
                raise Sent

    sys.setprofile(watch)
    try:
        main(words)
    except Sent:
        return entered
    finally:
        sys.setprofile(None)
    raise RuntimeError("nothing was sent")


def main() -> None:
    """Print the count, and the list with `-v`; other words go to `offbeat run`."""
    with tempfile.TemporaryDirectory() as folder:
        found = path(["run", "--out", f"{folder}/out", *(word for word in sys.argv[1:] if word != "-v")])
    files = Counter(code.co_filename.removeprefix(ROOT + "/") for code in found)
    print(f"{len(found)} functions in {len(files)} files")
    if "-v" in sys.argv:
        for code, times in found.items():
            print(f"{times:5} {code.co_filename.removeprefix(ROOT + '/')}:{code.co_qualname}")


if __name__ == "__main__":
    main()
