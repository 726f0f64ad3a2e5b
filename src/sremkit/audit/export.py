"""Export of an audit: the pairs to keep, or to drop, in the format that the next tool reads.

The table is read and written in chunks, so that memory does not grow with the number of pairs.
"""

from __future__ import annotations

import csv
import io
import json
import re
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np

from sremkit.audit.decisions import Decision, PairKey, decisions_of, read_decisions
from sremkit.audit.filtered import FILTER_KEY, filter_facts, share_left_before, write_filter_facts
from sremkit.audit.result_table import IDENTITY, ResultTable, arrow, as_floats, read_summary, with_column, write_table
from sremkit.audit.scoring.cutoff import CutoffRule
from sremkit.audit.scoring.remaining_mismatches import Remaining, remaining
from sremkit.audit.scoring.types import NearMismatches, NoiseRate
from sremkit.data.formats.webdataset import MAX_TEXT_BYTES, key_of_member
from sremkit.data.images import TarMember, tar_members
from sremkit.data.pairs import Problems
from sremkit.data.training_pairs import keep_list_lines
from sremkit.errors import DataError, UserError
from sremkit.io import atomic_write, atomic_write_folder, remove_partials_of, reserve, sole_writer, write_json

if TYPE_CHECKING:
    import pyarrow as pa

AUDIT_PREFIX = "audit_"  # of a column of ours whose name a column of the user's has
#: Cells that spreadsheets compute; numbers with a sign are none.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
UID = re.compile(r"[0-9a-fA-F]{32}")
UID_DTYPE = np.dtype("u8,u8")  # 128 bits as DataComp stores them: the first 16 hex digits, then the others

Select = Literal["keep", "drop", "all"]
ENDINGS = {".txt": "keep-list", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".pq": "parquet", ".npy": "uids"}
VERDICT_COLUMN = "_verdict"  # computed: "keep", "mismatch" or "unusable", by the cutoff and the decisions
BUCKET_ROWS = 20_000  # rows of a CSV export that are sorted in memory


@dataclass(frozen=True)
class Counts:
    """Number of rows that an export wrote."""

    written: int
    total: int
    left_out: int  # selected, but impossible to write
    decided: int = 0  # rows with a decision of `srem review`
    without_caption: int = 0  # of them, those whose new caption a list of ids cannot hold
    #: Wrong pairs among those kept; None where that cannot be estimated, and where other pairs are written.
    left: Remaining | None = field(default=None, compare=False)


def export(
    folder: str | Path,
    out: str | Path,
    *,
    format: str | None = None,
    select: Select = "keep",
    cutoff: CutoffRule | None = None,
    split: str | None = None,
    formulas: bool = False,
) -> Counts:
    """Write the pairs to keep, which have a score and are not flagged as mismatches, or those to drop.

    Decisions of `srem review` override verdicts, and new captions replace the given ones. A list of ids holds no
    captions, so there pairs with a new caption are among those to drop.

    Args:
        folder: of a finished audit.
        format: one of `EXPORTS`; by default the file's ending decides, and other endings are a keep-list.
        select: the pairs to keep, the others, or all rows.
        cutoff: instead of the rule that the audit was made with.
        split: by default all.
        formulas: write CSV cells that a spreadsheet would compute, such as =1+1, as they are; by default they get an
            apostrophe in front.
    """
    format = format or ENDINGS.get(Path(out).suffix.lower(), "keep-list")
    if format not in EXPORTS:
        raise UserError(f"there is no export format '{format}'; choose from: {', '.join(EXPORTS)}")
    folder, out = Path(folder), Path(out)
    table = ResultTable(folder)
    _refuse_existing(out)
    if cutoff is not None and not cutoff.applies(read_summary(folder).get("noise_rate")):
        raise UserError(
            "the audit could not estimate the noise rate, so its scores only rank the pairs and promise no "
            "precision; use --fraction or --threshold (fraction=, threshold= in Python)"
        )
    selection = Selection(
        table, select, cutoff, split, decisions=read_decisions(folder), has_captions=format in WITH_CAPTIONS
    )
    selection.formulas = formulas
    if selection.count == 0:
        raise DataError(f"there is nothing to write: there is no pair{'' if select == 'all' else f' to {select}'}")
    out.parent.mkdir(parents=True, exist_ok=True)
    left = _left_in(folder, selection) if select == "keep" and split is None else None
    selection.filtered = None if select != "keep" else filter_facts(len(table), selection.count, left)
    refusal = f"another process is writing {out}; wait for it, or name another file"
    with sole_writer(out.with_name(f".{out.name}.lock"), refusal):
        _refuse_existing(out)
        remove_partials_of(out)
        write = atomic_write_folder if format in FOLDERS else atomic_write
        write(out, partial(EXPORTS[format], selection))
        if selection.filtered is not None:
            write_filter_facts(out, selection.filtered)
    written = selection.count - selection.left_out
    return Counts(written, len(table), selection.left_out, selection.decided, selection.without_caption, left)


def _left_in(folder: Path, rows: Selection) -> Remaining | None:
    """How many wrong pairs are among those that the selection keeps."""
    summary = read_summary(folder)
    if summary.get("noise_rate") is None or rows.usable == 0:
        return None
    near = summary.get("near_mismatches")
    return remaining(
        NoiseRate(**summary["noise_rate"]),
        None if near is None else NearMismatches(**near),
        total=rows.usable,
        flagged=rows.dropped,
        expected_wrong=rows.dropped_wrong,
        share_before=share_left_before(summary.get("filtered_before")),
    )


def _refuse_existing(out: Path) -> None:
    if out.exists() or out.is_symlink():
        raise UserError(f"{out} exists already; name another file, or remove it first")


def export_table(table: pa.Table, out: Path) -> None:
    """Write every row of a table in memory: CSV as `export` does, or Parquet with all columns."""
    if ENDINGS[out.suffix.lower()] == "parquet":
        write_table(table, out)
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        stored = Path(folder) / "pairs.parquet"
        write_table(table, stored)
        atomic_write(out, partial(_write_csv, Selection(ResultTable(stored), "all")))


class Selection:
    """The rows of an audit's table that an export writes, read in chunks."""

    def __init__(
        self,
        table: ResultTable,
        select: Select,
        cutoff: CutoffRule | None = None,
        split: str | None = None,
        *,
        decisions: Mapping[str, Decision] | None = None,
        has_captions: bool = True,
    ) -> None:
        self.table = table
        self.decisions = decisions or {}
        self.has_captions = has_captions
        self.caption_columns = caption_columns(table)
        self.select = select
        self.split = split
        self.own: dict[str, str] = table.facts["own"]  # the user's columns -> their names in the table
        self.format = table.facts["source"].get("format")
        if split is not None and "split" not in self.own:
            raise UserError("these pairs have no column 'split'; leave --split out")
        self._cutoff = None if cutoff is None else cutoff.cutoff(self._scores)
        self.decided = self.without_caption = 0
        self.usable = 0  # pairs with a score
        self.dropped = 0  # of them, those that are not kept
        self.dropped_wrong = 0.0  # expected mismatches among those
        self.filtered: dict[str, Any] | None = None  # facts that an export of the pairs to keep carries
        self.new_captions: dict[tuple[str, str], str] = {}  # by shard and key, in chunks with the column "shard"
        self.count = sum(len(chunk) for chunk in self.chunks(["id"]))
        self.formulas = False  # whether CSV cells may begin one
        self.left_out = 0  # rows that could not be written; counted by the writer

    def chunks(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """These columns of the selected rows, and `VERDICT_COLUMN` where it is one of them, in chunks."""
        verdict = "is_mismatch" if self._cutoff is None else "match_probability"
        needed = ["problem", "match_probability", verdict, *([] if self.split is None else [self.own["split"]])]
        needed += IDENTITY if self.decisions else ()
        decided = without_caption = usable = dropped = 0
        dropped_wrong = 0.0
        needed = [name for name in dict.fromkeys((*columns, *needed)) if name != VERDICT_COLUMN]
        for chunk in self.table.chunks(needed):
            values = as_floats(chunk[verdict])  # NaN without a score
            is_mismatch = np.nan_to_num(values) == 1 if self._cutoff is None else values < self._cutoff
            is_usable = chunk["problem"].is_null().to_numpy()
            keep = is_usable & ~is_mismatch
            if self.decisions:
                found = self._decisions_in(chunk)
                decided += sum(decision is not None for decision in found)
                without_caption += sum(d is not None and d.text is not None and not self._replaces(d) for d in found)
                keeps = [None if d is None else d.action == "keep" or self._replaces(d) for d in found]
                overridden = np.array([kept is not None for kept in keeps]) & is_usable
                keep = np.where(overridden, np.array([kept is True for kept in keeps]), keep)
                chunk = self._with_new_captions(chunk, found)
            score = as_floats(chunk["match_probability"])
            is_scored = is_usable & np.isfinite(score)
            usable += int(is_scored.sum())
            dropped += int((is_scored & ~keep).sum())
            by_hand = keep == is_mismatch  # a decision has changed the verdict
            dropped_wrong += float(np.where(by_hand, 1.0, 1 - score)[is_scored & ~keep].sum())
            verdicts = np.where(is_usable, np.where(keep, "keep", "mismatch"), "unusable")
            chunk = chunk.append_column(VERDICT_COLUMN, arrow().array(verdicts))
            selected = {"keep": keep, "drop": ~keep, "all": np.ones_like(keep)}[self.select]
            if self.split is not None:
                splits = chunk[self.own["split"]].to_pylist()
                selected &= np.array([split == self.split for split in splits], dtype=bool)
            if selected.any():
                yield chunk.filter(arrow().array(selected)).select(columns)
        self.decided, self.without_caption = decided, without_caption
        self.usable, self.dropped, self.dropped_wrong = usable, dropped, dropped_wrong

    def _decisions_in(self, chunk: pa.Table) -> list[Decision | None]:
        rows = zip(*(chunk[name].to_pylist() for name in IDENTITY), strict=True)
        return decisions_of((PairKey(*row) for row in rows), self.decisions)

    def _replaces(self, decision: Decision) -> bool:
        return decision.text is not None and self.has_captions

    def _with_new_captions(self, chunk: pa.Table, decisions: list[Decision | None]) -> pa.Table:
        """Replace the captions that have new ones, in our column and in the user's."""
        if not any(decision is not None and decision.text is not None for decision in decisions):
            return chunk
        for name in dict.fromkeys(("text", *self.caption_columns)):
            if name in chunk.column_names:
                pairs = zip(chunk[name].to_pylist(), decisions, strict=True)
                texts = [old if new is None or new.text is None else new.text for old, new in pairs]
                chunk = with_column(chunk, name, arrow().array(texts, type=chunk.schema.field(name).type))
        if "shard" in chunk.column_names:
            keys = zip(chunk["shard"].to_pylist(), chunk["id"].to_pylist(), decisions, strict=True)
            self.new_captions |= {(shard, key): d.text for shard, key, d in keys if d is not None and d.text}
        return chunk

    def values(self, column: str) -> Iterator[Any]:
        """The values of one column, one by one."""
        for chunk in self.chunks([column]):
            yield from chunk[column].to_pylist()

    def _scores(self) -> Iterator[np.ndarray]:
        for chunk in self.table.chunks(["match_probability"]):
            score = as_floats(chunk["match_probability"])
            yield score[np.isfinite(score)]


def caption_columns(table: ResultTable) -> list[str]:
    """The stored names of the user's columns of captions; in tables of older versions, those that equal ours."""
    own = table.facts["own"]
    if "roles" in table.facts:
        column = table.facts["roles"].get("text")
        return [own[column]] if column in own else []
    pa = arrow()
    names = [own[n] for n in own if own[n] != "text" and pa.types.is_string(table.schema.field(own[n]).type)]
    first = next(table.chunks(["text", *names], 1000), None)
    if first is None:
        return []
    texts = first["text"].to_pylist()
    return [name for name in names if [t and t.strip() for t in first[name].to_pylist()] == texts]


def _write_keep_list(rows: Selection, out: Path) -> None:
    def ids() -> Iterator[str]:
        for pair_id in rows.values("id"):
            if pair_id is None:
                rows.left_out += 1
            else:
                yield pair_id

    with out.open("w", encoding="utf-8", newline="") as file:
        file.writelines(keep_list_lines(ids()))


def _write_csv(rows: Selection, out: Path) -> None:
    """The user's columns with score, verdict and better caption, the lowest score first, rows without a score last."""
    with out.open("w", encoding="utf-8", newline="") as file:
        delimiter = "\t" if out.suffix.lower() == ".tsv" else ","
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        ours = ["match_probability", "verdict", "better_text", *([] if rows.select == "keep" else ["problem"])]
        writer.writerow([*rows.own, *(name if name not in rows.own else AUDIT_PREFIX + name for name in ours)])
        stored = [VERDICT_COLUMN if name == "verdict" else name for name in ours]
        columns = [*rows.own.values(), *stored]
        present = list(dict.fromkeys(name for name in columns if name == VERDICT_COLUMN or name in rows.table))

        def cells() -> Iterator[list[Any]]:
            for chunk in rows.chunks(present):
                values = {name: chunk[name].to_pylist() for name in present}
                lists = [values.get(name, [None] * len(chunk)) for name in columns]
                yield from ([_cell(value, rows.formulas) for value in row] for row in zip(*lists, strict=True))

        scores = [as_floats(chunk["match_probability"]) for chunk in rows.chunks(["match_probability"])]
        writer.writerows(sort_rows(cells(), np.concatenate(scores)))


def sort_rows(rows: Iterable[list[Any]], keys: np.ndarray) -> Iterator[list[Any]]:
    """The rows in the order of their keys, NaN last; they wait in files, and some thousands are in memory at a time."""
    rank = np.empty(len(keys), dtype=np.int64)
    rank[np.argsort(keys, kind="stable")] = np.arange(len(keys))
    with tempfile.TemporaryDirectory() as folder:
        waiting: dict[int, list[tuple[int, list[Any]]]] = defaultdict(list)
        for number, row in enumerate(rows):
            waiting[int(rank[number]) // BUCKET_ROWS].append((int(rank[number]), row))
            if number % BUCKET_ROWS == BUCKET_ROWS - 1:
                _append(Path(folder), waiting)
        _append(Path(folder), waiting)
        for bucket in range(-(-len(keys) // BUCKET_ROWS)):
            with (Path(folder) / str(bucket)).open(encoding="utf-8") as file:
                members = [json.loads(line) for line in file]
            yield from (row for _, row in sorted(members, key=itemgetter(0)))


def _append(folder: Path, waiting: dict[int, list[tuple[int, list[Any]]]]) -> None:
    for bucket, members in waiting.items():
        with (folder / str(bucket)).open("a", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(member, default=str)}\n" for member in members)
    waiting.clear()


def _cell(value: Any, formulas: bool) -> Any:
    if value is None:
        return ""
    if isinstance(value, str) and not formulas and value.startswith(FORMULA_STARTS) and not NUMBER.fullmatch(value):
        return f"'{value}"
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else value


def _write_parquet(rows: Selection, out: Path) -> None:
    fields = [rows.table.schema.field(stored).with_name(name) for name, stored in rows.own.items()]
    facts = {} if rows.filtered is None else {FILTER_KEY: json.dumps(rows.filtered).encode()}
    schema = arrow().schema(fields, metadata=facts or None)
    with arrow("pyarrow.parquet").ParquetWriter(out, schema) as writer:
        for chunk in rows.chunks(list(rows.own.values())):
            writer.write_table(chunk.rename_columns(list(rows.own)).cast(schema))


def _write_shards(rows: Selection, out: Path) -> None:
    """Write shards of the same names into a folder, with some of their samples, copied without unpacking.

    Samples whose names would lead out of the folder they are unpacked in are left out.
    """
    if rows.format != "webdataset":
        raise UserError("only pairs from tar shards can be written as tar shards; choose csv or parquet")
    missing = Counter(shard for shard in rows.values("shard") if shard is not None)
    names = [Path(shard).name for shard in missing]
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise DataError(f"two shards are called {repeated}; export one split at a time with --split")
    captions = dict[str, dict[str, str | None]]()  # new ones, by shard and key
    for chunk in rows.chunks(["shard", "id"]):
        for shard, key in zip(chunk["shard"].to_pylist(), chunk["id"].to_pylist(), strict=True):
            if shard is None:
                continue
            captions.setdefault(shard, {})[key] = rows.new_captions.get((shard, key))
            missing[shard] -= 1
            if missing[shard] == 0:  # it is written after its last row, so that the keys of few shards are in memory
                of_shard = captions.pop(shard)
                safe = {key: text for key, text in of_shard.items() if stays_inside(key)}
                rows.left_out += len(of_shard) - len(safe)
                atomic_write(out / Path(shard).name, partial(_copy_members, shard, safe))


def _write_uids(rows: Selection, out: Path) -> None:
    uids = _uids(rows)
    numbers = np.lib.format.open_memmap(out, mode="w+", dtype=UID_DTYPE, shape=(rows.count,))
    reserve(out)
    for place, uid in enumerate(uids):
        if not isinstance(uid, str) or not UID.fullmatch(uid):
            raise DataError(f"the uid {uid!r:.60} does not consist of 32 hex digits, as DataComp's do")
        numbers[place] = (int(uid[:16], 16), int(uid[16:], 16))
    numbers.sort()  # in the file, so that the system may evict its pages
    numbers.flush()


def _uids(rows: Selection) -> Iterator[Any]:
    """DataComp's 128-bit uids: in a column 'uid', as the pairs' ids, or in the .json of each sample."""
    if "uid" in rows.own:
        return rows.values(rows.own["uid"])
    other = next((i for i in rows.values("id") if i is None or not UID.fullmatch(i)), "")
    if other == "":
        return rows.values("id")
    if rows.format == "webdataset":
        return (
            uid
            for chunk in rows.chunks(["shard", "id"])
            for uid in uids_in_shards(chunk["shard"].to_pylist(), chunk["id"].to_pylist())
        )
    raise DataError(
        "these pairs have no DataComp uids: there is no column 'uid', and their ids are not 32 hex digits, "
        f"such as '{other}'"
    )


WITH_CAPTIONS = ("csv", "parquet", "shards", "fiftyone")


def _write_fiftyone(rows: Selection, out: Path) -> None:
    """A classification dataset that FiftyOne imports: labels.json, and data.json with the path of each image.

    The classes are "match" and "mismatch", with the probability as confidence; the captions are attributes.
    """
    root = _image_root(rows)
    columns = [name for name in ("id", "image", "text", "match_probability", "better_text") if name in rows.table]
    samples = []
    paths: dict[str, str] = {}
    for chunk in rows.chunks([*columns, VERDICT_COLUMN]):
        for pair in chunk.to_pylist():
            if pair["id"] is None or pair["image"] is None or pair["match_probability"] is None:
                rows.left_out += 1
                continue
            paths[pair["id"]] = str(root / pair["image"])
            samples.append((pair["id"], pair, pair[VERDICT_COLUMN] == "mismatch"))
    labels = {
        name: {
            "label": "mismatch" if wrong else "match",
            "confidence": 1 - pair["match_probability"] if wrong else pair["match_probability"],
            "attributes": {
                "caption": pair["text"],
                "better_caption": pair.get("better_text"),
                "match_probability": pair["match_probability"],
            },
        }
        for name, pair, wrong in samples
    }
    write_json(out / "data.json", paths)
    # Without "classes": with them, FiftyOne reads labels as numbers of classes.
    write_json(out / "labels.json", {"labels": labels})


def _image_root(rows: Selection) -> Path:
    """The folder that image paths start from."""
    source = rows.table.facts["source"]
    if rows.format not in ("table", "folder"):
        raise UserError("FiftyOne reads image files, and these pairs are not a table or a folder of files; choose csv")
    path, root = Path(source["path"]), source.get("options", {}).get("image_root")
    return Path(root).absolute() if root else path if path.is_dir() else path.parent


FOLDERS = ("shards", "fiftyone")  # formats that write a folder

EXPORTS: dict[str, Callable[[Selection, Path], None]] = {
    "keep-list": _write_keep_list,
    "csv": _write_csv,
    "parquet": _write_parquet,
    "shards": _write_shards,
    "uids": _write_uids,
    "fiftyone": _write_fiftyone,
}


def stays_inside(name: str) -> bool:
    """Whether a member of this name is unpacked below the folder it is unpacked in."""
    path = PurePosixPath(name.replace("\\", "/"))
    return not path.is_absolute() and ".." not in path.parts and ":" not in (path.parts[:1] or ("",))[0]


def uids_in_shards(shards: Sequence[str | None], keys: Sequence[str]) -> list[Any]:
    """The field "uid" in the .json of each key, as img2dataset and DataComp write it, or None."""
    wanted: dict[str, set[str]] = {}
    for shard, key in zip(shards, keys, strict=True):
        if shard is not None:
            wanted.setdefault(shard, set()).add(key)
    found: dict[tuple[str, str], Any] = {}
    for shard, keys_here in wanted.items():
        with open(shard, "rb") as file:
            for member in _members(shard, keys_here):
                if member.name.lower().endswith(".json") and member.size <= MAX_TEXT_BYTES:
                    file.seek(member.offset)
                    found[shard, key_of_member(member.name)[0]] = _uid(file.read(member.size))
    return [found.get((shard or "", key)) for shard, key in zip(shards, keys, strict=True)]


def _uid(content: bytes) -> Any:
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return fields.get("uid") if isinstance(fields, dict) else None


def _members(shard: str, keys: set[str]) -> Iterator[TarMember]:
    for member in tar_members(Path(shard), Problems("skip")):
        if key_of_member(member.name)[0] in keys:
            yield member


def _copy_members(shard: str, captions: Mapping[str, str | None], out: Path) -> None:
    """Copy the members of these keys; a caption that is not None replaces the stored one."""
    with open(shard, "rb") as source, tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as target:
        for member in _members(shard, set(captions)):
            entry = tarfile.TarInfo(member.name)
            entry.size = member.size
            source.seek(member.offset)
            new = _new_caption(source, member, captions[key_of_member(member.name)[0]])
            if new is not None:
                entry.size = len(new)
                target.addfile(entry, io.BytesIO(new))
                continue
            source.seek(member.offset)
            target.addfile(entry, source)  # reads exactly `size` bytes


def _new_caption(source: IO[bytes], member: TarMember, caption: str | None) -> bytes | None:
    """The content of a .txt or .json member with another caption; None where it stays as it is."""
    suffix = member.name.lower().rpartition(".")[2]
    if suffix not in ("txt", "json") or member.size > MAX_TEXT_BYTES or caption is None:
        return None
    if suffix == "txt":
        return caption.encode()
    try:
        fields = json.loads(source.read(member.size))
    except ValueError:
        return None
    if not isinstance(fields, dict) or "caption" not in fields:
        return None
    return json.dumps({**fields, "caption": caption}, ensure_ascii=False).encode()
