// A grid that holds only the tiles in view, so that 100,000 pairs scroll like a hundred.

import { imageAddress } from "./api.js";
import { badge, scoreText } from "./single.js";

const WIDTH = 160, HEIGHT = 276, GAP = 8, SPARE_LINES = 2, READ_MS = 100;
// Browsers limit the height of an element (Firefox to about 17 million pixels); beyond, positions are scaled.
const MAX_HEIGHT = 10_000_000;

export class Grid {
  constructor(section, pairs, { open, select, fail }) {
    Object.assign(this, { section, pairs, open, select, fail });
    this.space = section.querySelector("#space");
    this.tiles = new Map(); // by position
    section.addEventListener("scroll", () => this.schedule(), { passive: true });
    new ResizeObserver(() => this.layout()).observe(section);
    section.addEventListener("click", (event) => {
      const tile = event.target.closest(".tile");
      if (tile) this.select(Number(tile.dataset.position));
    });
    section.addEventListener("dblclick", (event) => {
      if (event.target.closest(".tile")) this.open();
    });
  }

  reset(key, hasImages) {
    Object.assign(this, { key, hasImages });
    this.clear();
    this.section.scrollTop = 0;
    this.layout();
  }

  clear() {
    for (const tile of this.tiles.values()) tile.remove();
    this.tiles.clear();
  }

  layout() {
    if (this.section.hidden) return;
    const width = this.section.clientWidth - GAP;
    const columns = Math.max(1, Math.floor((width + GAP) / (WIDTH + GAP)));
    this.tileWidth = Math.floor((width - (columns - 1) * GAP) / columns);
    if (columns !== this.columns) this.clear();
    this.columns = columns;
    const full = Math.ceil(this.pairs.length / columns) * HEIGHT;
    this.scale = full > MAX_HEIGHT ? full / MAX_HEIGHT : 1;
    this.space.style.height = `${full / this.scale}px`;
    this.draw();
  }

  schedule() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = null; this.draw(); });
  }

  draw() {
    if (this.section.hidden || !this.columns) return;
    const top = this.section.scrollTop, height = this.section.clientHeight;
    const firstLine = Math.max(0, Math.floor((top * this.scale) / HEIGHT) - SPARE_LINES);
    const lines = Math.ceil(height / HEIGHT) + 2 * SPARE_LINES;
    const first = firstLine * this.columns;
    const last = Math.min(this.pairs.length, (firstLine + lines) * this.columns) - 1;
    for (const [position, tile] of this.tiles) {
      if (position >= first && position <= last) continue;
      tile.querySelector("img")?.removeAttribute("src"); // cancels a request
      tile.remove();
      this.tiles.delete(position);
    }
    const shift = top - top * this.scale;
    for (let position = first; position <= last; position += 1) {
      if (!this.tiles.has(position)) this.add(position);
      const tile = this.tiles.get(position);
      const line = Math.floor(position / this.columns), column = position % this.columns;
      tile.style.width = `${this.tileWidth}px`;
      tile.style.transform = `translate(${column * (this.tileWidth + GAP)}px, ${line * HEIGHT + shift}px)`;
      const isSelected = position === this.pairs.position;
      tile.setAttribute("aria-selected", String(isSelected));
      if (isSelected) this.section.setAttribute("aria-activedescendant", tile.id);
    }
    if (last >= first) this.read(first, last);
  }

  /** Read the details in view, at most ten times a second: a fast scroll does not ask for all that passes. */
  read(first, last) {
    this.wanted = [first, last];
    if (this.resting) return;
    this.readWanted();
    this.resting = setTimeout(() => { this.resting = null; if (this.wanted) this.readWanted(); }, READ_MS);
  }

  readWanted() {
    const [first, last] = this.wanted, rows = this.pairs.rows;
    this.wanted = null;
    this.pairs.load(first, last).then(() => { if (rows === this.pairs.rows) this.fill(); }, this.fail);
  }

  add(position) {
    const tile = document.createElement("div");
    tile.className = "tile";
    tile.role = "option";
    tile.id = `tile-${position}`;
    tile.dataset.position = position;
    this.tiles.set(position, tile);
    this.space.append(tile);
    this.fillTile(position, tile);
  }

  fill() {
    for (const [position, tile] of this.tiles) if (!tile.dataset.row) this.fillTile(position, tile);
  }

  /** Draw the tile of a row anew, after a decision. */
  refresh(row) {
    for (const [position, tile] of this.tiles) if (tile.dataset.row === String(row)) this.fillTile(position, tile);
  }

  fillTile(position, tile) {
    const pair = this.pairs.at(position);
    if (!pair) return;
    tile.dataset.row = pair.row;
    tile.className = `tile ${pair.decision?.action ?? ""}`;
    const frame = document.createElement("div");
    frame.className = "frame";
    if (this.hasImages) {
      const image = document.createElement("img");
      image.decoding = "async";
      image.alt = `image of pair ${pair.id ?? pair.row}`;
      image.onerror = () => { frame.textContent = "no image"; };
      image.src = imageAddress(this.key, pair.row, "small");
      frame.append(image);
    }
    const words = document.createElement("p");
    words.className = "words";
    words.dir = "auto";
    words.textContent = pair.decision?.text ?? pair.text ?? "(unknown)";
    const score = document.createElement("p");
    score.className = "score";
    score.append(pair.problem ? "cannot be read" : scoreText(pair, ""));
    const state = document.createElement("p");
    state.append(badge(pair.decision));
    tile.replaceChildren(frame, words, score, state);
  }

  /** How many tiles are in view. */
  page() { return this.columns * Math.max(1, Math.floor(this.section.clientHeight / HEIGHT)); }

  /** Bring a position into view. */
  reveal(position) {
    if (!this.columns) return;
    const top = Math.floor(position / this.columns) * HEIGHT / this.scale;
    const height = this.section.clientHeight;
    if (top < this.section.scrollTop) this.section.scrollTop = top;
    else if (top + HEIGHT > this.section.scrollTop + height) this.section.scrollTop = top + HEIGHT - height;
    this.draw();
  }
}
