"""What the suites share: where the gate is, and how a test is run. No test framework, so that a suite needs nothing but
the library that it is about.

A test is a function whose name begins with test_; it fails by raising. Environment:

  TIDEGATE_BASE_URL     http://HOST:PORT of the gate, without /v1
  TIDEGATE_KEY          a key that may use the three aliases below
  TIDEGATE_ALIAS        chat, on an engine that speaks /v1/messages itself (default chat)
  TIDEGATE_TRANSLATED   chat, on an engine that is asked for chat completions instead (default translated)
  TIDEGATE_EMBEDDINGS   embeddings (default embeddings)
  TIDEGATE_DENIED       an alias that exists and is not granted (default forbidden)
  TIDEGATE_LIMITED_KEY  a key whose team has rpm 3 and concurrency 2, used by nobody else
  TIDEGATE_SINGLE_KEY   a key whose team has concurrency 1, used by nobody else
  TIDEGATE_USAGE        a command that prints `tidegate usage --json`; --team and --by are added to it
"""

import json
import os
import shlex
import subprocess
import sys
import time
import traceback

BASE_URL = os.environ["TIDEGATE_BASE_URL"].rstrip("/")
KEY = os.environ["TIDEGATE_KEY"]
ALIAS = os.environ.get("TIDEGATE_ALIAS", "chat")
TRANSLATED = os.environ.get("TIDEGATE_TRANSLATED", "translated")
EMBEDDINGS = os.environ.get("TIDEGATE_EMBEDDINGS", "embeddings")
DENIED = os.environ.get("TIDEGATE_DENIED", "forbidden")
LIMITED_KEY = os.environ["TIDEGATE_LIMITED_KEY"]
SINGLE_KEY = os.environ["TIDEGATE_SINGLE_KEY"]
USAGE = shlex.split(os.environ["TIDEGATE_USAGE"])

QUESTION = "What is the capital of France? Answer in one sentence."
STORY = "Tell me a very long story about a lighthouse keeper, with many chapters."
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "name of the city"}},
    "required": ["city"],
}


def raises(kind, call):
    """The exception of that kind that the call raises; anything else is a failure."""
    try:
        answer = call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was expected, the answer was {answer!r}")


def usage(team: str, by: str = "team") -> dict:
    """Sums of one team's ledger."""
    out = subprocess.run([*USAGE, "--team", team, "--by", by], check=True, capture_output=True, text=True).stdout
    sums: dict = {}
    for row in json.loads(out)["rows"]:
        for name in ("requests", "ok", "failed", "cancelled", "prompt_tokens", "output_tokens"):
            sums[name] = sums.get(name, 0) + row[name]
    return sums


def until(what: str, condition, seconds: float = 10.0):
    """Asks again until the condition gives something true: for what happens on the other side after a call returned."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.1)
    return value


def run(tests: dict) -> None:
    """Runs every test_ function of a module's namespace, and ends the process."""
    passed, failed = 0, 0
    suite = os.path.splitext(os.path.basename(sys.argv[0]))[0]
    for name, test in list(tests.items()):
        if not name.startswith("test_"):
            continue
        start = time.monotonic()
        try:
            test()
        except Exception:  # a failing test must not hide the ones after it
            failed += 1
            print(f"FAILED  {suite}: {name}")
            traceback.print_exc()
        else:
            passed += 1
            print(f"passed  {suite}: {name} ({time.monotonic() - start:.1f} s)", flush=True)
    print(f"{suite}: {passed} passed, {failed} failed", flush=True)
    sys.exit(1 if failed or not passed else 0)
