// The review page: filters, keys, decisions and progress.

import * as api from "./api.js";
import { Grid } from "./grid.js";
import { Pairs } from "./pairs.js";
import { showSingle } from "./single.js";

const POLL_MS = 3000;
const AHEAD = 3; // images that are fetched before they are shown
const element = (id) => document.getElementById(id);
const form = element("filters");
const pairs = new Pairs();
const grid = new Grid(element("grid"), pairs, { open: () => setView(false), select: (p) => go(p), fail });
let audit = null, isGrid = false, version = 0, asked = 0;

function fail(problem) {
  element("error").textContent = problem ? problem.message : "";
  element("error").hidden = !problem;
}

/** Run an action and show its error as a sentence. */
const guarded = (action) => async (...given) => {
  try { await action(...given); fail(null); } catch (problem) { fail(problem); }
};

function filters() {
  const chosen = Object.fromEntries(new FormData(form));
  return { ...chosen, low: chosen.low || "0", high: chosen.high || "1" };
}

const search = guarded(async () => {
  const number = (asked += 1);
  const chosen = filters();
  sessionStorage.setItem("filters", JSON.stringify(chosen));
  const found = await api.listRows(chosen);
  if (number !== asked) return; // a later search is under way
  pairs.reset(found);
  element("empty").hidden = pairs.length > 0;
  grid.reset(audit.key, !audit.note);
  setView(isGrid);
});

function setView(toGrid) {
  isGrid = toGrid;
  sessionStorage.setItem("grid", toGrid ? "1" : "");
  element("view").setAttribute("aria-pressed", String(toGrid));
  element("grid").hidden = !toGrid || !pairs.length;
  element("single").hidden = toGrid || !pairs.length;
  grid.layout();
  go(pairs.position);
}

const go = guarded(async (position) => {
  pairs.position = Math.max(0, Math.min(position, pairs.length - 1));
  showCount();
  if (!pairs.length) return;
  const here = pairs.position, rows = pairs.rows;
  if (isGrid) { grid.reveal(here); return; }
  await pairs.load(here, here + AHEAD);
  if (here !== pairs.position || rows !== pairs.rows || isGrid) return;
  showSingle(pairs.at(here), audit.key, !audit.note);
  for (let k = 1; k <= AHEAD && !audit.note; k += 1) {
    const next = pairs.at(here + k);
    if (next) new Image().src = api.imageAddress(audit.key, next.row, "large");
  }
});

function showCount() {
  const shown = pairs.length < pairs.total ? ` (the first ${pairs.length.toLocaleString("en")} are shown)` : "";
  const place = pairs.length ? `${(pairs.position + 1).toLocaleString("en")} of ` : "";
  element("count").textContent = `${place}${pairs.total.toLocaleString("en")} pairs${shown}`;
}

function showProgress(progress) {
  version = Math.max(version, progress.version);
  const { flagged, confirmed, estimate, low, high } = progress.precision;
  const percent = (share) => `${Math.round(100 * share)} %`;
  const sentences = [`${progress.decided.toLocaleString("en")} decided`];
  if (estimate !== null) {
    sentences.push(`precision so far: ${percent(estimate)} (${confirmed} of ${flagged} flagged pairs mismatch; 95 % ` +
      `interval ${percent(low)} to ${percent(high)})`);
  }
  element("progress").textContent = sentences.join(" · ");
  element("bar").value = progress.flagged ? progress.flagged_decided / progress.flagged : 0;
}

function showDecision(row, decision) {
  pairs.setDecision(row, decision);
  if (isGrid) grid.refresh(row);
  else if (pairs.rows[pairs.position] === row) showSingle(pairs.at(pairs.position), audit.key, !audit.note);
}

const decide = guarded(async (action, text = null) => {
  const pair = pairs.at(pairs.position);
  if (!pair) return;
  const { decision, progress } = await api.decide(pair.row, action, text);
  showDecision(pair.row, decision);
  showProgress(progress);
  if (pairs.rows[pairs.position] === pair.row) await go(pairs.position + 1);
});

const undo = guarded(async () => {
  const { row, decision, progress } = await api.undo();
  if (row === null) throw new Error("there is nothing to undo in this tab");
  showProgress(progress);
  showDecision(row, decision);
  const position = pairs.rows.indexOf(row);
  if (position >= 0) await go(position);
});

function edit() {
  const pair = pairs.at(pairs.position);
  if (!pair || pair.problem !== null || pair.left_out) return;
  element("new-caption").value = pair.decision?.text ?? pair.text ?? "";
  element("editor").showModal();
  element("new-caption").focus();
}

const nextUndecided = guarded(async () => {
  for (let position = pairs.position + 1; position < pairs.length; position += 1) {
    if (!pairs.at(position)) await pairs.load(position, position);
    if (!pairs.at(position)?.decision) { await go(position); return; }
  }
  throw new Error("no undecided pair follows in this list");
});

const ACTIONS = {
  keep: () => decide("keep"), drop: () => decide("drop"), accept: () => decide("accept"), edit, undo,
  previous: () => go(pairs.position - 1), next: () => go(pairs.position + 1), undecided: nextUndecided,
  grid: () => setView(!isGrid), open: () => { if (isGrid) setView(false); },
  up: () => { if (isGrid) go(pairs.position - grid.columns); },
  down: () => { if (isGrid) go(pairs.position + grid.columns); },
  first: () => go(0), last: () => go(pairs.length - 1),
  search: () => form.elements.query.focus(), help: () => element("help").showModal(),
};
const KEYS = {
  k: "keep", d: "drop", a: "accept", e: "edit", u: "undo", n: "undecided", g: "grid", "/": "search", "?": "help",
  ArrowLeft: "previous", ArrowRight: "next", ArrowUp: "up", ArrowDown: "down", Home: "first", End: "last",
  Enter: "open",
};

// Decisions are sent one after the other, so that fast keys act on the pairs that are shown.
let queue = Promise.resolve();
const enqueue = (name) => { queue = queue.then(() => ACTIONS[name]()); };

document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const isButton = event.target.closest("button");
  const name = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!name || (event.key === "Enter" && isButton) || (!isGrid && ["up", "down"].includes(name))) return;
  if (event.repeat && ["keep", "drop", "accept", "undo"].includes(name)) return; // a key that is held down decides once
  event.preventDefault();
  enqueue(name);
});

for (const button of document.querySelectorAll("[data-do]")) {
  button.addEventListener("click", () => enqueue(button.dataset.do));
}
element("view").addEventListener("click", () => setView(!isGrid));
form.addEventListener("change", search);
form.addEventListener("submit", (event) => { event.preventDefault(); search(); });
let typing = null;
form.elements.query.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(search, 250); });
const save = () => {
  element("editor").close();
  queue = queue.then(() => decide("edit", element("new-caption").value));
};
element("editor").querySelector("form").addEventListener("submit", (event) => { event.preventDefault(); save(); });
element("cancel").addEventListener("click", () => element("editor").close());
element("new-caption").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); save(); }
});

/** Show decisions of other tabs and processes. */
async function poll() {
  try {
    const { changes, progress } = await api.changes(version);
    for (const { row, decision } of changes) showDecision(row, decision);
    showProgress(progress);
  } catch { /* the next request of the user states the problem */ }
  setTimeout(poll, POLL_MS);
}

guarded(async () => {
  // The token of the address is in a cookie now.
  if (location.search) history.replaceState(null, "", location.pathname);
  audit = await api.describe();
  document.title = `Review: ${audit.name}`;
  element("title").textContent = `Review: ${audit.name}`;
  const expected = audit.expected_precision === null ? "" :
    `, expected precision ${Math.round(100 * audit.expected_precision)} %`;
  element("numbers").textContent =
    `${audit.pairs.toLocaleString("en")} pairs, ${audit.flagged.toLocaleString("en")} flagged${expected}`;
  element("note").textContent = audit.note;
  element("note").hidden = !audit.note;
  showProgress(audit.progress);
  const stored = JSON.parse(sessionStorage.getItem("filters") ?? "null") ?? (audit.flagged ? {} : { show: "all" });
  for (const [name, value] of Object.entries(stored)) if (form.elements[name]) form.elements[name].value = value;
  isGrid = sessionStorage.getItem("grid") === "1";
  await search();
  setTimeout(poll, POLL_MS);
})();
