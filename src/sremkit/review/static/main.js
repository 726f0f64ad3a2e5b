// The review page: filters, keys, decisions and progress.

import * as api from "./api.js";
import { Grid } from "./grid.js";
import { Pairs } from "./pairs.js";
import { enableActions, showSingle } from "./single.js";

const POLL_MS = 3000;
const AHEAD = 3; // images that are fetched before they are shown
const element = (id) => document.getElementById(id);
const form = element("filters");
const pairs = new Pairs();
const grid = new Grid(element("grid"), pairs, {
  open: () => enqueue(ACTIONS.open), select: (position) => enqueue(() => go(position)), fail,
});
const latest = new Map(); // row -> number of the newest change that is shown
let audit = null, isGrid = false, version = 0;
let shownFilters = null; // of the list that is shown
let startRow = null; // after a reload the row that was shown before

function fail(problem) {
  element("error").textContent = problem ? problem.message : "";
  element("error").hidden = !problem;
}

/** An action that shows its error as a sentence. */
const guarded = (action) => async () => {
  fail(null);
  try { await action(); } catch (problem) { fail(problem); }
};

function filters() {
  const chosen = Object.fromEntries(new FormData(form));
  return { ...chosen, low: chosen.low || "0", high: chosen.high || "1" };
}

async function search() {
  const chosen = filters(), state = JSON.stringify(chosen);
  if (state === shownFilters) return; // a list that is shown keeps its position
  sessionStorage.setItem("filters", state);
  pairs.reset(await api.listRows(chosen));
  shownFilters = state;
  pairs.position = Math.max(0, pairs.rows.indexOf(startRow));
  startRow = null;
  element("empty").hidden = pairs.length > 0;
  grid.reset(audit.key, !audit.note);
  await setView(isGrid);
}

async function setView(toGrid) {
  isGrid = toGrid;
  sessionStorage.setItem("grid", toGrid ? "1" : "");
  element("view").setAttribute("aria-pressed", String(toGrid));
  element("grid").hidden = !toGrid || !pairs.length;
  element("single").hidden = toGrid || !pairs.length;
  element("actions").hidden = !pairs.length;
  grid.layout();
  if (!form.contains(document.activeElement)) element(toGrid ? "grid" : "single").focus({ preventScroll: true });
  await go(pairs.position);
}

async function go(position) {
  pairs.position = Math.max(0, Math.min(position, pairs.length - 1));
  showCount();
  if (!pairs.length) return;
  const here = pairs.position, rows = pairs.rows;
  sessionStorage.setItem("row", `${audit.key} ${rows[here]}`);
  if (isGrid) {
    grid.reveal(here);
    enableActions(pairs.at(here));
    return;
  }
  await pairs.load(here, here + AHEAD);
  if (here !== pairs.position || rows !== pairs.rows || isGrid) return;
  showSingle(pairs.at(here), audit.key, !audit.note);
  for (let k = 1; k <= AHEAD && !audit.note; k += 1) {
    const next = pairs.at(here + k);
    if (next) new Image().src = api.imageAddress(audit.key, next.row, "large");
  }
}

function showCount() {
  const shown = pairs.length < pairs.total ? ` (the first ${pairs.length.toLocaleString("en")} are shown)` : "";
  const place = pairs.length ? `${(pairs.position + 1).toLocaleString("en")} of ` : "";
  element("count").textContent = `${place}${pairs.total.toLocaleString("en")} pairs${shown}`;
}

function showProgress(progress) {
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

/** Show a change, unless a newer one of the same row is shown. */
function showChange({ number, row, decision }) {
  if (number < (latest.get(row) ?? 0)) return;
  latest.set(row, number);
  pairs.setDecision(row, decision);
  if (isGrid) grid.refresh(row);
  else if (pairs.rows[pairs.position] === row) showSingle(pairs.at(pairs.position), audit.key, !audit.note);
}

async function decide(action, text = null) {
  await pairs.load(pairs.position, pairs.position);
  const pair = pairs.at(pairs.position);
  if (!pair) return;
  const { change, progress } = await api.decide(pair.row, action, text);
  showChange(change);
  showProgress(progress);
  if (pairs.rows[pairs.position] === pair.row) await go(pairs.position + 1);
}

async function undo() {
  const { change, progress } = await api.undo();
  if (change === null) throw new Error("there is nothing to undo in this tab");
  showProgress(progress);
  showChange(change);
  const position = pairs.rows.indexOf(change.row);
  if (position < 0) throw new Error("the decision was undone; its pair is not in this list");
  await go(position);
}

function edit() {
  const pair = pairs.at(pairs.position);
  if (!pair || pair.problem !== null || pair.left_out) return;
  element("new-caption").value = pair.decision?.text ?? pair.text ?? "";
  element("editor").showModal();
  element("new-caption").focus();
}

async function nextUndecided() {
  for (let position = pairs.position + 1; position < pairs.length; position += 1) {
    if (!pairs.at(position)) await pairs.load(position, position);
    const pair = pairs.at(position);
    if (pair && !pair.decision && pair.problem === null) { await go(position); return; }
  }
  throw new Error("no undecided pair follows in this list");
}

const ACTIONS = {
  keep: () => decide("keep"), drop: () => decide("drop"), accept: () => decide("accept"), edit, undo,
  previous: () => go(pairs.position - 1), next: () => go(pairs.position + 1), undecided: nextUndecided,
  grid: () => setView(!isGrid), open: () => setView(false),
  up: () => go(pairs.position - grid.columns), down: () => go(pairs.position + grid.columns),
  pageUp: () => go(pairs.position - grid.page()), pageDown: () => go(pairs.position + grid.page()),
  first: () => go(0), last: () => go(pairs.length - 1),
  search: () => { element("filter-part").open = true; form.elements.query.focus(); }, help: () => element("help").showModal(),
};
const KEYS = {
  k: "keep", d: "drop", a: "accept", e: "edit", u: "undo", n: "undecided", g: "grid", "/": "search", "?": "help",
  ArrowLeft: "previous", ArrowRight: "next", Home: "first", End: "last",
};
const GRID_KEYS = { ArrowUp: "up", ArrowDown: "down", PageUp: "pageUp", PageDown: "pageDown", Enter: "open" };

// Actions run one after the other, so that fast keys act on the pairs that are shown.
let queue = Promise.resolve();
const enqueue = (action) => { queue = queue.then(guarded(action)); };

document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, select, textarea")) {
    // Enter and Esc return to the pairs; a changed field then asks for its rows.
    if (event.key === "Escape" || (event.key === "Enter" && event.target.matches("input"))) event.target.blur();
    return;
  }
  if (event.key === "Enter" && event.target.closest("button")) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const name = KEYS[key] ?? (isGrid ? GRID_KEYS[key] : undefined);
  if (!name) return;
  if (event.repeat && ["keep", "drop", "accept", "undo"].includes(name)) return; // a key that is held down decides once
  event.preventDefault();
  // The search field takes the next keys immediately: while an earlier action runs, they would be decisions.
  if (name === "search") ACTIONS.search();
  else enqueue(ACTIONS[name]);
});

for (const button of document.querySelectorAll("[data-do]")) {
  button.addEventListener("click", () => enqueue(ACTIONS[button.dataset.do]));
}
// A filter that was chosen by mouse or touch gives the keys back to the pairs, else K and D would choose in its list.
let isPointed = false;
document.addEventListener("pointerdown", () => { isPointed = true; }, true);
document.addEventListener("keydown", () => { isPointed = false; }, true);
form.addEventListener("change", (event) => {
  if (isPointed && event.target.matches("select")) event.target.blur();
  enqueue(search);
});
form.addEventListener("submit", (event) => event.preventDefault());
let typing = null;
form.elements.query.addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => enqueue(search), 250);
});
const save = () => {
  element("editor").close();
  const text = element("new-caption").value;
  enqueue(() => decide("edit", text));
};
element("editor").querySelector("form").addEventListener("submit", (event) => { event.preventDefault(); save(); });
element("cancel").addEventListener("click", () => element("editor").close());
element("new-caption").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); save(); }
});

// On narrow screens the filters are folded in at first.
const narrow = matchMedia("(max-width: 700px)");
const foldFilters = () => { element("filter-part").open = !narrow.matches; };
narrow.addEventListener("change", foldFilters);
foldFilters();

/** Show decisions of other tabs and processes. */
async function poll() {
  try {
    const { changes, progress } = await api.changes(version);
    for (const change of changes) {
      showChange(change);
      version = change.number;
    }
    showProgress(progress);
  } catch { /* the next request of the user states the problem */ }
  setTimeout(poll, POLL_MS);
}

enqueue(async () => {
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
  version = audit.version;
  const stored = JSON.parse(sessionStorage.getItem("filters") ?? "null") ?? (audit.flagged ? {} : { show: "all" });
  for (const [name, value] of Object.entries(stored)) if (form.elements[name]) form.elements[name].value = value;
  isGrid = sessionStorage.getItem("grid") === "1";
  const [key, row] = (sessionStorage.getItem("row") ?? "").split(" ");
  if (key === audit.key) startRow = Number(row);
  await search();
  setTimeout(poll, POLL_MS);
});
