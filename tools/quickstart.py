#!/usr/bin/env python3
"""quickstart.py: what ./quickstart needs beyond a shell, with Python's own library only.

How:   quickstart.py ports N [WANTED…]        N free ports on loopback, the wanted ones where they are free
       quickstart.py ready ADMIN_URL PID SECONDS     until /readyz answers 200, or the process ends, or time is up
       quickstart.py accepts URL KEY_FILE     exit 0 when the gate takes the key, 3 when it refuses it
       quickstart.py ask URL KEY_FILE ALIAS   one question, at once and streamed; prints both answers and their tokens
       quickstart.py usage ALIAS REQUESTS TOKENS     reads `tidegate usage --json` from standard input and compares
"""

import json
import socket
import sys
import time
import urllib.error
import urllib.request

QUESTION = "What is the capital of France? Answer in one sentence."


def ports(count: int, wanted: list[int]) -> list[int]:
    found, held = [], []
    for candidate in wanted + [0] * count:
        if len(found) == count:
            break
        probe = socket.socket()
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", candidate))
        except OSError:
            continue
        held.append(probe)  # kept until all are found, so that none is given twice
        found.append(probe.getsockname()[1])
    return found


def ready(url: str, pid: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    last = "no answer"
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=2):
                return
        except urllib.error.HTTPError as error:
            last = error.read().decode(errors="replace").strip() or str(error)
        except OSError as error:
            last = str(error)
        try:
            with open(f"/proc/{pid}/stat") as stat:
                ended = stat.read().rpartition(") ")[2][0] in "ZX"
        except OSError:
            ended = True
        if ended:
            sys.exit("tidegate ended before it was ready")
        time.sleep(0.05)
    sys.exit(f"not ready after {seconds:g} s: {last}")


def call(url: str, key_file: str, path: str, body: dict | None = None):
    with open(key_file) as file:
        key = file.read().strip()
    data = None if body is None else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    return urllib.request.urlopen(urllib.request.Request(url + path, data, headers), timeout=120)


def accepts(url: str, key_file: str) -> None:
    try:
        call(url, key_file, "/v1/models").close()
    except urllib.error.HTTPError as error:
        sys.exit(3 if error.code == 401 else f"the gate answered {error.code} to /v1/models: {error.read().decode()}")


def ask(url: str, key_file: str, alias: str) -> None:
    body = {"model": alias, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 64, "temperature": 0}
    print(f"question   {QUESTION}")
    with call(url, key_file, "/v1/chat/completions", body) as response:
        answer = json.load(response)
    text = answer["choices"][0]["message"]["content"]
    print(f"answer     {text}")
    streamed, chunks, usage, done = "", 0, None, False
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    with call(url, key_file, "/v1/chat/completions", body) as response:
        for line in response:
            if not line.startswith(b"data: "):
                continue
            data = line.removeprefix(b"data: ").strip()
            if data == b"[DONE]":
                done = True
                continue
            chunk = json.loads(data)
            if "error" in chunk:
                sys.exit(f"error in the stream: {chunk['error']}")
            chunks += 1
            usage = chunk.get("usage") or usage
            streamed += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
    print(f"streamed   {streamed}   ({chunks} events)")
    if not text.strip() or not streamed.strip():
        sys.exit("an answer is empty")
    if not done or usage is None or chunks < 3:
        sys.exit(f"the stream is not whole: {chunks} events, usage {usage}, end {done}")
    if {answer["model"], chunk["model"]} != {alias}:
        sys.exit(f"the answer names the model {answer['model']}, {chunk['model']} and not {alias}")
    print(f"tokens     {answer['usage']['total_tokens'] + usage['total_tokens']}")


def tokens_of(row: dict) -> int:
    return sum(int(row.get(name) or 0) for name in ("prompt_tokens", "output_tokens"))


def usage(alias: str, requests: int, tokens: int) -> None:
    rows = [row for row in rows_of(json.load(sys.stdin)) if row.get("alias") == alias]
    seen = sum(int(row["requests"]) for row in rows), sum(map(tokens_of, rows))
    if seen != (requests, tokens):
        sys.exit(f"the ledger has {seen[0]} requests and {seen[1]} tokens, the engine reported {requests} and {tokens}")


def rows_of(answer) -> list[dict]:
    return answer if isinstance(answer, list) else answer["rows"]


def main() -> None:
    match sys.argv[1:]:
        case ["ports", count, *wanted]:
            print(*ports(int(count), [int(port) for port in wanted]))
        case ["ready", url, pid, seconds]:
            ready(url, int(pid), float(seconds))
        case ["accepts", url, key_file]:
            accepts(url, key_file)
        case ["ask", url, key_file, alias]:
            ask(url, key_file, alias)
        case ["usage", alias, requests, tokens]:
            usage(alias, int(requests), int(tokens))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    try:
        main()
    except urllib.error.HTTPError as error:
        sys.exit(f"the gate answered {error.code}: {error.read().decode(errors='replace')}")
    except OSError as error:
        sys.exit(f"the gate cannot be reached: {error}")
