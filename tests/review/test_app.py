"""The API of the review on a real server: filters, decisions, images, and what it refuses."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

from live_server import Client, running
from reviewed_audits import SCRIPT, open_review, open_reviewed, write_audit
from sremkit.audit.decisions import Decision, Decisions, PairKey, read_decisions
from sremkit.audit.export import export
from sremkit.cli.main import main
from sremkit.errors import DataError, UserError
from sremkit.review.images import AuditImages


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return write_audit(tmp_path / "data", texts={1: SCRIPT})


@pytest.fixture
def client(audit: Path) -> Iterator[Client]:
    with running(open_review(audit)) as opened:
        yield opened


def rows(client: Client, query: str) -> list[int]:
    return client.get(f"/api/rows?{query}").json()["rows"]


def decide(client: Client, row: int, action: str | None, text: str | None = None, tab: str = "tab") -> None:
    body = {"row": row, "action": action, "text": text, "client": tab}
    assert client.post("/api/decide", body).status == 200


def test_rows_by_score_decision_and_search(client: Client) -> None:
    assert rows(client, "show=flagged&order=lowest") == list(range(10))  # scores k / 40, flagged below 0.25
    assert rows(client, "show=flagged&order=highest") == list(range(9, -1, -1))
    assert rows(client, "show=certain") == [0, 1, 2, 3]  # below 0.1
    assert rows(client, "low=0.5&high=0.55") == [20, 21, 22]
    assert rows(client, "query=CAPTION+39") == [39]
    decide(client, 2, "drop")
    decide(client, 5, "keep")
    assert rows(client, "decided=yes&order=row") == [2, 5]
    assert rows(client, "decided=drop") == [2]
    assert 2 not in rows(client, "decided=no")


def test_the_most_useful_order_starts_at_the_cutoff(client: Client) -> None:
    first = rows(client, "show=all&order=useful")[:4]
    assert set(first) <= {7, 8, 9, 10, 11, 12}  # the cutoff is 9 / 40
    assert first[0] == 9


def test_the_random_order_is_the_same_in_every_list(client: Client) -> None:
    whole = rows(client, "order=random")
    assert sorted(whole) == list(range(40))
    assert whole != sorted(whole)
    assert rows(client, "order=random&show=flagged") == [row for row in whole if row < 10]


@pytest.mark.parametrize(
    "path",
    [
        "/api/rows?show=everything",
        "/api/rows?low=2",
        "/api/rows?low=nan",
        "/api/rows?low=a",
        "/api/rows?order=%00",
        "/api/pairs?rows=1,x",
        "/api/pairs?rows=99999",
        "/api/pairs?rows=-1",
        "/api/pairs?rows=" + ",".join("1" for _ in range(500)),
        "/api/changes?since=-1",
        "/image/key/0/huge",
        "/image/key/99999/small",
        "/image/key/../../../etc/passwd",
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/nothing",
    ],
)
def test_bad_requests_get_a_client_error_and_no_traceback(client: Client, path: str) -> None:
    answer = client.get(path)
    assert 400 <= answer.status < 500
    assert b"Traceback" not in answer.body
    assert b"File " not in answer.body


@pytest.mark.parametrize(
    "content",
    [
        {},
        [],
        b"not JSON",
        {"row": 1, "action": "explode", "client": "tab"},
        {"row": 10**30, "action": "keep", "client": "tab"},
        {"row": -1, "action": "keep", "client": "tab"},
        {"row": 1, "action": "edit", "text": "   ", "client": "tab"},
        {"row": 1, "action": "edit", "text": "x" * 6000, "client": "tab"},
        {"row": 30, "action": "accept", "client": "tab"},  # has no suggestion
        {"row": 1, "action": "keep", "client": ""},
    ],
)
def test_bad_decisions_are_refused_and_not_stored(client: Client, audit: Path, content: object) -> None:
    assert 400 <= client.post("/api/decide", content).status < 500
    assert read_decisions(audit) == {}


def test_changes_need_a_post_of_the_same_origin(client: Client, audit: Path) -> None:
    body = {"row": 1, "action": "keep", "client": "tab"}
    assert client.get("/api/decide").status == 405
    assert client.post("/api/decide", body, origin="http://elsewhere.example").status == 403
    assert client.post("/api/decide", body, sec_fetch_site="cross-site").status == 403
    assert read_decisions(audit) == {}
    assert client.post("/api/decide", body, origin=client.url).status == 200
    assert len(read_decisions(audit)) == 1


def test_undo_takes_back_the_last_decision_of_a_tab(client: Client, audit: Path) -> None:
    decide(client, 1, "keep", tab="one")
    decide(client, 2, "drop", tab="two")
    undone = client.post("/api/undo", {"client": "one"}).json()["change"]
    assert (undone["row"], undone["decision"]) == (1, None)
    assert client.post("/api/undo", {"client": "one"}).json()["change"] is None
    assert list(read_decisions(audit).values()) == [Decision("drop")]


def test_another_process_sees_decisions_and_they_survive_without_a_clean_end(client: Client, audit: Path) -> None:
    decide(client, 3, "edit", "a better caption")
    other = open_reviewed(audit)  # the first connection is still open, as after a kill
    assert other.by_row() == {3: Decision("edit", "a better caption")}
    other.decide(4, "drop", None, client="other")
    assert client.get("/api/changes?since=0").json()["changes"][-1]["row"] == 4


@pytest.mark.alone
def test_a_killed_server_has_stored_every_confirmed_decision(audit: Path) -> None:
    command = [sys.executable, "-m", "sremkit", "review", str(audit), "--port", "0", "--no-browser"]
    confirmed: set[int] = set()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", "".join(process.stdout.readline() for _ in range(2)))
        assert found is not None
        tab = Client(int(found[1]))

        def decide_all() -> None:
            for row in range(40):
                if tab.post("/api/decide", {"row": row, "action": "drop", "client": "tab"}).status == 200:
                    confirmed.add(row)

        with ThreadPoolExecutor(1) as pool:
            deciding = pool.submit(decide_all)
            while len(confirmed) < 10:
                assert not deciding.done()
                time.sleep(0.001)
            process.kill()  # SIGKILL, in the middle of decisions
            assert deciding.exception() is not None
    assert 10 <= len(confirmed) < 40
    assert confirmed <= set(open_reviewed(audit).by_row())


def test_an_audit_that_was_made_again_needs_a_restart(client: Client, audit: Path) -> None:
    table = audit / "pairs.parquet"
    os.utime(table, ns=(0, 0))
    for path in ("/api/rows", "/api/pairs?rows=1", "/api/changes"):
        answer = client.get(path)
        assert (answer.status, "stop `srem review` and start it anew" in answer.json()["detail"]) == (400, True)
    answer = client.post("/api/decide", {"row": 1, "action": "keep", "client": "tab"})
    assert answer.status == 400
    assert read_decisions(audit) == {}


def test_an_undone_decision_of_an_earlier_audit_is_on_the_row_of_today(audit: Path) -> None:
    before = open_reviewed(audit)
    before.decide(3, "drop", None, client="tab")
    table = pq.read_table(audit / "pairs.parquet")
    pq.write_table(table.slice(2), audit / "pairs.parquet")  # the input has lost two rows
    change = open_reviewed(audit).undo("tab")
    assert (change.row, change.decision) == (1, None)


def test_images_are_thumbnails_of_rows_and_of_nothing_else(client: Client) -> None:
    key = client.get("/api/audit").json()["key"]
    answer = client.get(f"/image/{key}/0/small")
    assert answer.headers["content-type"] == "image/webp"
    assert max(Image.open(io.BytesIO(answer.body)).size) <= 256
    better = client.get(f"/image/{key}/0/small?better=true")
    assert better.status == 200
    assert better.body != answer.body


def test_captions_travel_as_json_and_every_answer_has_the_policy(client: Client) -> None:
    answer = client.get("/api/pairs?rows=1")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()[0]["text"] == SCRIPT
    assert "default-src 'none'" in client.get("/").headers["content-security-policy"]


def test_an_export_honours_decisions(client: Client, audit: Path, tmp_path: Path) -> None:
    decide(client, 0, "keep")  # was flagged
    decide(client, 39, "drop")  # was not
    decide(client, 2, "accept")
    counts = export(audit, tmp_path / "keep.csv")
    text = (tmp_path / "keep.csv").read_text(encoding="utf-8")
    assert counts.decided == 3
    assert "caption 0\n" in text.replace(",", "\n")
    assert "caption 39" not in text
    assert "better 2" in text


def test_a_list_of_ids_says_which_decisions_it_cannot_hold(
    client: Client, audit: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decide(client, 2, "accept")
    decide(client, 30, "edit", "another caption")
    decide(client, 31, "keep")
    assert main(["export", str(audit), "-o", str(tmp_path / "keep.txt")]) == 0
    printed = capsys.readouterr().out
    assert "3 rows have decisions" in printed
    assert "2 of them have a new caption, which this format cannot hold, and are left out" in printed
    assert "p30" not in (tmp_path / "keep.txt").read_text().split()
    assert main(["export", str(audit), "-o", str(tmp_path / "keep.csv")]) == 0
    assert "new caption" not in capsys.readouterr().out


def test_an_audit_of_another_version_is_a_sentence(audit: Path) -> None:
    table = pq.read_table(audit / "pairs.parquet")
    pq.write_table(table.drop_columns(["problem"]), audit / "pairs.parquet")
    with pytest.raises(DataError, match=r"lacks columns that a review needs \(problem\).*make the audit again"):
        open_reviewed(audit)


def test_a_moved_image_folder_is_a_sentence_and_can_be_named(tmp_path: Path) -> None:
    audit = write_audit(tmp_path / "data")
    (tmp_path / "data" / "pairs.csv").rename(tmp_path / "elsewhere.csv")
    facts = open_reviewed(audit).table.facts["source"]
    assert "name the new place with --image-root" in AuditImages(audit, facts).note
    found = AuditImages(audit, facts, path=tmp_path / "elsewhere.csv", image_root=tmp_path / "data")
    assert found.note == ""
    assert found.open(0, "0.png") is not None
    assert found.open(0, "../data/0.png") is None  # a name that is not in the table
    with pytest.raises(UserError, match="is no folder"):
        AuditImages(audit, facts, image_root=tmp_path / "gone")


def test_folders_that_cannot_be_reviewed_are_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["review", str(tmp_path / "gone"), "--no-browser"]) != 0
    assert "does not exist" in capsys.readouterr().err
    audit = write_audit(tmp_path / "data")
    (audit / "summary.json").unlink()
    with pytest.raises(DataError, match="is not finished"):
        open_reviewed(audit)


def test_a_database_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    audit = write_audit(tmp_path / "data")
    with pytest.raises(UserError, match="check that you may write to this folder"):
        Decisions(audit / "gone")
    (audit / "decisions.sqlite").mkdir()
    with pytest.raises(DataError, match="it is no file"):
        open_reviewed(audit)
    assert PairKey("p0", "0.png", "caption 0").key != PairKey("p0", "0.png", "caption 1").key
