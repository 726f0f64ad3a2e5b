"""The HTTP API over a really trained run, by real requests to a real server."""

from __future__ import annotations

import base64
import io
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from live_server import Client, running
from sremkit.search.searcher import Searcher
from sremkit.search.server.app import build_app

for package in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(package, reason="the extra 'serve' is not installed")


@pytest.fixture(scope="module")
def client(searcher: Searcher) -> Iterator[Client]:
    with running(build_app(searcher)) as client:
        yield client


def png(searcher: Searcher, number: int) -> str:
    assert searcher.pairs.images is not None
    data = io.BytesIO()
    searcher.pairs.images.open(number).save(data, format="PNG")
    return base64.b64encode(data.getvalue()).decode()


def test_search_by_text_and_by_image_equals_the_searcher(client: Client, searcher: Searcher) -> None:
    text = searcher.pairs.texts[11]
    expected = [hit.as_dict() for hit in searcher.search_texts([text], 4)[0]]
    found = client.post("/search", {"text": text, "k": 4})
    assert found.status == 200
    assert [r["image"] for r in found.json()["results"]] == [r["image"] for r in expected]
    assert [r["score"] for r in found.json()["results"]] == pytest.approx([r["score"] for r in expected], abs=2e-4)
    assert searcher.pairs.images is not None
    captions = [hit.pair_id for hit in searcher.search_images([searcher.pairs.images.open(2)], 3)[0]]
    by_image = client.post("/search", {"image": png(searcher, 2), "k": 3}).json()["results"]
    assert [result["pair_id"] for result in by_image] == captions


def test_scores_are_those_of_the_search(client: Client, searcher: Searcher) -> None:
    text = searcher.pairs.texts[8]
    (hits,) = searcher.search_texts([text], 2)
    pairs = [{"text": text, "image_id": hit.image_id} for hit in hits]
    scores = client.post("/score", {"pairs": pairs}).json()["scores"]
    assert scores == pytest.approx([hit.score for hit in hits], abs=1e-4)


def test_concurrent_queries_are_batched_and_each_gets_its_own_answer(client: Client, searcher: Searcher) -> None:
    texts = [searcher.pairs.texts[k] for k in range(0, 120, 2)]
    expected = [[hit.image for hit in hits] for hits in searcher.search_texts(texts, 2)]

    def ask(text: str) -> list[int]:
        return [result["image"] for result in client.post("/search", {"text": text, "k": 2}).json()["results"]]

    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(ask, texts)) == expected
    metrics = client.get("/metrics").body.decode()
    count, total = (float(re.findall(rf"^sremkit_batch_size_{n} (\S+)", metrics, re.M)[0]) for n in ("count", "sum"))
    assert total > count  # some batch held more than one query
    assert re.search(r'^sremkit_http_requests_total\{path="/search",status="200"\} [6-9]\d\.0', metrics, re.M)


def test_health_page_and_images(client: Client, searcher: Searcher) -> None:
    assert client.get("/health").json() == {
        "status": "ok", "model": "vse-infty", "collection": "scenes", "images": 60, "texts": 300,
    }  # fmt: skip
    assert b"/static/search.js" in client.get("/").body
    image = client.get("/images/3")
    assert (image.status, image.headers["content-type"], image.body[8:12]) == (200, "image/webp", b"WEBP")
    assert client.get("/images/60").status == 404
    assert client.get("/images/../config.toml").status in (404, 422)


@pytest.mark.parametrize(
    ("content", "status", "sentence"),
    [
        ({}, 400, "give either text or image"),
        ({"text": "a", "image": "b"}, 400, "give either text or image"),
        ({"text": "   "}, 400, "the text is empty"),
        ({"image": "no base64!"}, 400, "not valid base64"),
        ({"image": base64.b64encode(b"no image").decode()}, 400, "cannot be decoded"),
        ({"text": "a", "k": 0}, 422, "greater than or equal to 1"),
        ({"text": "a" * 2001}, 422, "at most 2000"),
        ({"text": "a", "other": 1}, 422, "Extra inputs"),
    ],
)
def test_bad_requests_get_a_sentence(client: Client, content: object, status: int, sentence: str) -> None:
    answer = client.post("/search", content)
    assert answer.status == status
    assert sentence in json.dumps(answer.json()["detail"])


def test_unknown_images_and_large_bodies_are_refused(client: Client) -> None:
    unknown = client.post("/score", {"pairs": [{"text": "a", "image_id": "nowhere"}]})
    assert (unknown.status, "there is no image 'nowhere'" in unknown.json()["detail"]) == (400, True)
    assert client.request("POST", "/search", b"", content_length="99000000").status == 413


def test_a_slow_model_is_given_up_in_time(searcher: Searcher, monkeypatch: pytest.MonkeyPatch) -> None:
    app = build_app(searcher, timeout=0.2)
    find = searcher.find_images
    monkeypatch.setattr(searcher, "find_images", lambda *arguments: time.sleep(0.6) or find(*arguments))
    with running(app) as slow:
        started = time.monotonic()
        answer = slow.post("/search", {"text": "a"})
        assert (answer.status, time.monotonic() - started < 0.55) == (504, True)


def test_schemathesis_finds_no_answer_outside_of_the_schema(client: Client) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    schema = schemathesis.openapi.from_url(f"{client.url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert {operation.path for operation in operations} == {
        "/search", "/score", "/health", "/metrics", "/images/{number}"
    }  # fmt: skip
    for operation in operations:
        run_cases(operation)


def run_cases(operation) -> None:
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings

    phases = [Phase.explicit, Phase.generate]

    @given(case=operation.as_strategy())
    @settings(max_examples=15, derandomize=True, deadline=None, database=None, phases=phases,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    def call(case) -> None:
        response = case.call()
        # A schema cannot say that a string is an image, or an id of the collection.
        case.validate_response(response, excluded_checks=[schemathesis.checks.positive_data_acceptance])
        assert response.status_code < 500

    call()


@pytest.mark.alone
def test_the_command_serves_logs_json_and_finishes_requests_on_sigterm(run: Path, searcher: Searcher) -> None:
    command = [sys.executable, "-m", "sremkit", "serve", str(run), "--port", "0", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
        assert found is not None
        assert Client(int(found[1])).post("/search", {"text": "a secret query"}).status == 200
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    events = [json.loads(line) for line in err.splitlines()]
    request = next(event for event in events if event["event"] == "request")
    assert (request["method"], request["path"], request["status"]) == ("POST", "/search", 200)
    assert any(event["event"] == "stopped" for event in events)
    assert "secret" not in err
    assert (process.returncode, "stopped" in out) == (0, True)
