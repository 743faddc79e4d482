#!/usr/bin/env python3
"""run.py: the client suites against `tidegate up` with the real engine.

What:  writes the documents of site/ with this machine's ports and programs, starts tidegate (which starts the engines),
       makes the keys, runs each suite in a process of its own, stops tidegate, and looks whether anything is left.
Needs: the libraries (tools/real/clients), llama.cpp's server (tools/real/llamacpp), a tidegate binary.
How:   run.py --tidegate BINARY --engine FOLDER [--keep FOLDER] [SUITE…]
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import quickstart  # noqa: E402  the same ports and the same waiting as the quick start

SUITES = ["openai_suite", "anthropic_suite"]


def write_site(folder: pathlib.Path, engine: pathlib.Path) -> tuple[str, str]:
    gate, admin = quickstart.ports(2, [])
    first = quickstart.ports(1, [])[0]
    command = json.dumps([str(engine / "python"), str(ROOT / "tools" / "llama_server.py")])
    text = (HERE / "site" / "site.yaml").read_text()
    for old, new in {
        "127.0.0.1:8000": f"127.0.0.1:{gate}",
        "127.0.0.1:8900": f"127.0.0.1:{admin}",
        "8001-8099": f"{min(first, 65000)}-{min(first, 65000) + 99}",
        "[llama-server]": command,
    }.items():
        assert old in text, f"site.yaml no longer has {old}"
        text = text.replace(old, new)
    site = folder / "site"
    site.mkdir()
    (site / "site.yaml").write_text(text)
    (site / "model.gguf").symlink_to((engine / "model.gguf").resolve())
    return f"http://127.0.0.1:{gate}", f"http://127.0.0.1:{admin}"


def verb(tidegate: str, state: pathlib.Path, *words: str) -> list[str]:
    return [tidegate, *words, "--state", str(state), "--json"]


def make_key(tidegate: str, state: pathlib.Path, team: str) -> str:
    made = subprocess.run(verb(tidegate, state, "key", "create", "--team", team), check=True, capture_output=True, text=True)
    return json.loads(made.stdout)["secret"]


def run_suites(suites: list[str], tidegate: str, state: pathlib.Path, gate: str) -> int:
    env = os.environ | {
        "TIDEGATE_BASE_URL": gate,
        "TIDEGATE_KEY": make_key(tidegate, state, "clients"),
        "TIDEGATE_LIMITED_KEY": make_key(tidegate, state, "limited"),
        "TIDEGATE_SINGLE_KEY": make_key(tidegate, state, "single"),
        "TIDEGATE_USAGE": " ".join(verb(tidegate, state, "usage")),
    }
    codes = [subprocess.run([sys.executable, str(HERE / f"{suite}.py")], env=env).returncode for suite in suites]
    return sum(code != 0 for code in codes)


def stop(process: subprocess.Popen, folder: pathlib.Path) -> int:
    """Ends tidegate as an operator would, and says how many of its children stayed behind."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        print("tidegate did not end within 60 s")
        return 1
    left = []
    for cmdline in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = cmdline.read_bytes()
        except OSError:
            continue
        if f"{folder}/site/model.gguf".encode() in words:
            left.append(cmdline.parent.name)
    if left:
        print(f"engines are left running: {', '.join(left)}")
    if process.returncode != 0:
        print(f"tidegate ended with {process.returncode}")
    return len(left) + (process.returncode != 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tidegate", required=True)
    parser.add_argument("--engine", required=True, type=pathlib.Path, help="what tools/real/llamacpp/install.sh prints")
    parser.add_argument("--keep", type=pathlib.Path, help="folder for documents, state and log (default: one that goes)")
    parser.add_argument("suites", nargs="*", default=SUITES)
    args = parser.parse_args()
    folder = args.keep or pathlib.Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    folder, state = folder.resolve(), folder.resolve() / "state"
    gate, admin = write_site(folder, args.engine)
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [args.tidegate, "up", str(folder / "site"), "--state", str(state)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )
    failed = 1
    try:
        quickstart.ready(admin, process.pid, 180)
        failed = run_suites(args.suites, args.tidegate, state, gate)
    finally:
        failed += stop(process, folder)
        if failed:
            print(f"--- the end of {folder}/log")
            print("\n".join((folder / "log").read_text(errors="replace").splitlines()[-40:]))
        elif not args.keep:
            shutil.rmtree(folder)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
