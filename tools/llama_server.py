#!/usr/bin/env python3
"""llama_server.py: llama.cpp's HTTP server, as the xllamacpp wheel holds it, behind llama-server's own flags.

What:  the wheel has the server but no command line. This takes the flags of llama-server that Tidegate's llama.cpp
       dialect uses, with their meaning, so that a site may name either program as its engine command.
       /metrics, /slots and /props are off by default in the library and always on here.
Needs: Python 3.10 or newer with xllamacpp (tools/real/llamacpp/install.sh), a GGUF model file.
How:   llama_server.py --model MODEL.gguf [--host 127.0.0.1] [--port 8080] [--alias NAME] [--ctx-size 8192]
       [--parallel 4] [--threads 1] [--embeddings [--pooling mean]] [--reranking]
       Prints "listening http://HOST:PORT" when ready. SIGTERM or SIGINT ends it.
"""

import argparse
import signal
import threading

import xllamacpp

POOLING = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True, help="path of a GGUF file")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080, help="0 takes a free port and prints it")
    parser.add_argument("-a", "--alias", help="model name to report")
    parser.add_argument("-c", "--ctx-size", type=int, default=8192, help="tokens of context, shared out over the slots")
    parser.add_argument("-np", "--parallel", type=int, default=4, help="slots: requests that decode at the same time")
    parser.add_argument("-t", "--threads", type=int, default=1, help="more than one spins on a busy machine")
    parser.add_argument("--embeddings", "--embedding", action="store_true", help="answer /v1/embeddings")
    parser.add_argument("--pooling", choices=POOLING, help="how token vectors become one; mean with --embeddings")
    parser.add_argument("--reranking", "--rerank", action="store_true", help="answer /v1/rerank; needs a model for it")
    parser.add_argument("--metrics", action="store_true", help="always on; taken because llama-server wants it")
    parser.add_argument("--slots", action="store_true", help="always on")
    parser.add_argument("--props", action="store_true", help="always on")
    parser.add_argument("--verbosity", type=int, default=3)
    return parser.parse_args()


def parameters(args: argparse.Namespace) -> "xllamacpp.CommonParams":
    params = xllamacpp.CommonParams()
    params.model.path = args.model
    if args.alias:
        params.model_alias = {args.alias}
    params.hostnames = [args.host]
    params.port = args.port
    params.n_parallel = args.parallel
    params.n_ctx = args.ctx_size
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.endpoint_props = True
    params.cpuparams.n_threads = args.threads
    if args.embeddings or args.reranking:
        params.embedding = True
        params.pooling_type = POOLING[args.pooling or ("rank" if args.reranking else "mean")]
    params.verbosity = args.verbosity
    return params


def main() -> None:
    args = arguments()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server = xllamacpp.Server(parameters(args))  # returns once the model is loaded; until then the port answers 503
    print("listening", server.listening_address, flush=True)
    stop.wait()
    del server


if __name__ == "__main__":
    main()
