"""Load test of `srem serve`: queries at a fixed rate against a dual encoder on 100,000 generated image vectors.

    python -m benchmarks.serve_load                              # 100 queries/s for 20 s, and what p99 is
    python -m benchmarks.serve_load --rate 150 --seconds 30 --images 10000
    python -m benchmarks.serve_load --unrelated                  # the worst case of the search

Queries are sent when they are due, whether earlier ones are answered or not, and the latency counts from that time, so
a server that falls behind cannot hide it. Server and load generator share the machine, on the loopback interface. Rate
and duration are bounded.

The image features are a linear map of sentence vectors of generated captions, with noise, so that the dual encoder
learns to match them, as it does photographs. With --unrelated they are random: the model learns by heart, the queries
resemble no image, and the search has to compare with all vectors. That is its worst case.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote_plus

import numpy as np

from benchmarks.commands import make_parser, run_command
from sremkit.errors import UserError
from sremkit.features.encoders.minilm import MiniLMEncoder
from sremkit.search.index_folder import INDEX

MAX_RATE, MAX_SECONDS, MAX_IMAGES = 1_000, 120, 1_000_000
CONNECTIONS = 64
TRAIN_PAIRS, CAPTIONS = 2_000, 1_000
TEXT_DIM, IMAGE_DIM = 384, 1280  # of MiniLM and EfficientNet-lite2
NOISE = 0.3  # length of the noise of a sentence vector
SUBJECTS = ("a dog", "two children", "a man in a red shirt", "a woman", "a brown horse", "people", "a black cat")
PLACES = (
    "on a beach",
    "in the snow",
    "at a table",
    "in front of a house",
    "near the water",
    "on a street",
    "in a park",
)
ACTIONS = ("running", "sitting", "jumping over something", "playing with a ball", "looking up", "standing together")


class Reply(NamedTuple):
    seconds: float  # from when the query was due
    status: int


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser("serve_load", __doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/serve-load"), help="of the generated data and model")
    parser.add_argument("--images", type=int, default=100_000, help="image vectors to search")
    parser.add_argument("--rate", type=float, default=100.0, help="queries per second")
    parser.add_argument("--seconds", type=float, default=20.0, help="of load that are measured")
    parser.add_argument("--warmup", type=float, default=3.0, help="seconds of load that are not measured")
    parser.add_argument("--threads", type=int, help="of the server")
    parser.add_argument("--unrelated", action="store_true", help="random images that have nothing to do with texts")
    return run_command(parser, measure, arguments)


def measure(args: argparse.Namespace) -> None:
    if not (0 < args.rate <= MAX_RATE and 0 < args.seconds <= MAX_SECONDS and 100 <= args.images <= MAX_IMAGES):
        raise UserError(f"at most {MAX_RATE} queries/s for {MAX_SECONDS} s against 100 to {MAX_IMAGES:,} images")
    folder = args.folder / ("unrelated" if args.unrelated else "related")
    run = prepare(folder, args.images, unrelated=args.unrelated)
    threads = [] if args.threads is None else ["--threads", str(args.threads)]
    log = (folder / "server.jsonl").open("w")
    command = [sys.executable, "-m", "sremkit", "serve", str(run), "--port", "0", "--no-browser", *threads]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", server.stdout.readline())
        if found is None:
            sys.exit(f"the server did not start; see {log.name}")
        port = int(found[1])
        cpu_before = cpu_time(server.pid)
        asyncio.run(load(port, args.rate, args.warmup))
        load_before = os.getloadavg()[0]
        own_before = time.process_time()
        replies = asyncio.run(load(port, args.rate, args.seconds))
        own_seconds = time.process_time() - own_before
        metrics = asyncio.run(get(port, "/metrics"))
        cpu_seconds = cpu_time(server.pid) - cpu_before
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(20)
    result = summarize(replies, metrics, args, load_before, cpu_seconds)
    result["generator_cpu_ms_per_query"] = round(1000 * own_seconds / len(replies), 2)
    print(json.dumps(result, indent=2))


def cpu_time(pid: int) -> float:
    """Seconds of CPU that a process has used so far; NaN where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def prepare(folder: Path, num_images: int, *, unrelated: bool) -> Path:
    """A dual encoder trained on 2,000 generated pairs, and its index of `num_images` others."""
    run = folder / "run"
    facts = run / INDEX / "index.json"
    if not run.exists():
        write_features(folder / "train", TRAIN_PAIRS, seed=0, unrelated=unrelated)
        epochs = 1 if unrelated else 10
        settings = (f"data.source={folder / 'train'}", f"training.epochs={epochs}", "training.warmup_epochs=1")
        srem("train", "features-dual-srem", "--out", run, *(part for s in settings for part in ("--set", s)))
    if not facts.exists() or json.loads(facts.read_text())["images"]["count"] != num_images:
        write_features(folder / f"images-{num_images}", num_images, seed=1, unrelated=unrelated)
        srem("index", run, "--source", folder / f"images-{num_images}")
    return run


def srem(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "sremkit", *map(str, arguments)], check=True)


def write_features(folder: Path, count: int, *, seed: int, unrelated: bool) -> None:
    """A folder as `srem features` writes it, with vectors of the default encoders' widths."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    sentences, pooled = random_vectors(count, rng) if unrelated else related_vectors(count, rng)
    shapes = {}
    for name, values in (("pooled", pooled), ("sentences", sentences)):
        np.save(folder / f"{name}.npy", (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float16))
        shapes[name] = {"shape": list(values.shape)}
    images = (json.dumps({"id": f"{k}.jpg", "split": "all"}) for k in range(count))
    pairs = (json.dumps({"id": str(k), "split": "all", "image": k, "text": caption(k)}) for k in range(count))
    (folder / "images.jsonl").write_text("".join(f"{line}\n" for line in images))
    (folder / "pairs.jsonl").write_text("".join(f"{line}\n" for line in pairs))
    manifest = {"name": "generated", "has_splits": False, "splits": {"all": {}}, "arrays": shapes}
    (folder / "features.json").write_text(json.dumps(manifest))


def random_vectors(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Sentence vectors (n, 384) and image vectors (n, 1280) of the same latent vectors."""
    latent = rng.standard_normal((count, 32), dtype=np.float32)
    return (
        latent @ rng.standard_normal((32, TEXT_DIM), dtype=np.float32),
        latent @ rng.standard_normal((32, IMAGE_DIM), dtype=np.float32),
    )


def related_vectors(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Sentence vectors (n, 384), means of two captions' vectors with noise, and a linear map (n, 1280) of them."""
    encoded = MiniLMEncoder().encode([caption(k * 41) for k in range(CAPTIONS)])
    first, second = rng.integers(0, CAPTIONS, (2, count))
    noise = rng.standard_normal((count, TEXT_DIM), dtype=np.float32) / np.sqrt(TEXT_DIM)
    sentences = (encoded[first] + encoded[second]) / 2 + NOISE * noise
    to_image = np.random.default_rng(9).standard_normal((TEXT_DIM, IMAGE_DIM), dtype=np.float32)
    return sentences, sentences @ to_image


def caption(number: int) -> str:
    rest, subject = divmod(number, len(SUBJECTS))
    rest, place = divmod(rest, len(PLACES))
    rest, action = divmod(rest, len(ACTIONS))
    return f"{SUBJECTS[subject]} {ACTIONS[action]} {PLACES[place]} {rest}"


async def load(port: int, rate: float, seconds: float) -> list[Reply]:
    """Send queries when they are due, over connections that are kept open."""
    pool: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        pool.put_nowait(await asyncio.open_connection("127.0.0.1", port))
    begin = time.perf_counter() + 0.1

    async def query(number: int) -> Reply:
        due = begin + number / rate
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        reader, writer = await pool.get()
        path = f"/search?text={quote_plus(caption(number * 37))}&k=10"
        status, _ = await request(reader, writer, path)
        pool.put_nowait((reader, writer))
        return Reply(time.perf_counter() - due, status)

    replies = await asyncio.gather(*(query(number) for number in range(int(rate * seconds))))
    while not pool.empty():
        pool.get_nowait()[1].close()
    return list(replies)


async def request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> tuple[int, bytes]:
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    await writer.drain()
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.I)
    body = await reader.readexactly(int(length[1]) if length else 0)
    return int(head.split()[1]), body


async def get(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    _, body = await request(reader, writer, path)
    writer.close()
    return body.decode()


def summarize(
    replies: list[Reply], metrics: str, args: argparse.Namespace, load_before: float, cpu_seconds: float
) -> dict[str, object]:
    milliseconds = 1000 * np.array([reply.seconds for reply in replies if reply.status == 200])
    batches, queries = (
        float(re.findall(rf"^sremkit_batch_size_{name} (\S+)", metrics, re.M)[0]) for name in ("count", "sum")
    )
    return {
        "images": args.images,
        "rate": args.rate,
        "queries": len(replies),
        "failed": sum(reply.status != 200 for reply in replies),
        "latency_ms": {f"p{p}": round(float(np.percentile(milliseconds, p)), 1) for p in (50, 90, 99, 100)},
        "mean_batch": round(queries / batches, 2),
        "cores": os.cpu_count(),
        "server_cpu_ms_per_query": round(1000 * cpu_seconds / queries, 2),
        "load_average_before": round(load_before, 2),
    }


if __name__ == "__main__":
    raise SystemExit(main())
